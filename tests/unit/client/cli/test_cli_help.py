"""Quick commands stay quick because they load little: held by the list of loaded modules."""

import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from client.errors import ExitCode
from client.train.messaging.handshake import PROTOCOL
from tests.support.cli_process import apart
from tests.support.control_fakes import FakeProvider
from tests.support.nodes import node_of

HEAVY = {"torch", "numpy", "libp2p", "textual", "trio", "transformers", "client.node.node"}
PROBE = """
import sys
from client.cli.main import run
code = run(sys.argv[1:])
print("CODE", code)
print("LOADED", " ".join(sorted(sys.modules)))
"""


@cache
def _run(*arguments: str, **variables: str) -> tuple[int, set[str], str]:
    done = apart(sys.executable, "-c", PROBE, *arguments, **variables)
    text, _, tail = done.stdout.rpartition("CODE ")
    code, _, loaded = tail.partition("\nLOADED ")
    return int(code), set(loaded.split()), text


def test_the_version_has_that_of_the_protocol_and_loads_nothing_heavy() -> None:
    code, loaded, text = _run("--version")
    assert code == 0
    assert text.strip().endswith(f", protocol {PROTOCOL}")
    assert not HEAVY & loaded


def test_help_names_every_command_and_loads_none_of_them() -> None:
    from client.cli.command_table import COMMANDS, FIRST

    code, loaded, text = _run("--help")
    listed = [line.split()[1] for line in text.splitlines() if line.startswith("│ ")]
    commands = [word for word in listed if word in COMMANDS]
    assert tuple(commands[: len(FIRST)]) == FIRST, "what a volunteer needs, before all else"
    assert sorted(commands) == sorted(COMMANDS)
    assert not {command.module for command in COMMANDS.values()} & loaded
    assert (code, HEAVY & loaded) == (0, set())


def test_the_page_of_a_command_is_the_docstring_of_its_file() -> None:
    from client.cli.command_table import CLIENT, _read

    folder = CLIENT / "cli" / "commands"
    read = {name: _read(folder / f"{name}.py") for name in ("resume", "relay", "config")}
    assert [(each.group, each.nested) for each in read.values()] == [
        ("First", False),
        ("More: the swarm", False),
        ("More: this machine", True),
    ]
    assert read["resume"].examples == (("resume", "now"),)
    assert (read["resume"].summary, read["resume"].note) == ("Resume after a pause.", "")
    assert read["relay"].module == "client.cli.commands.relay"
    assert read["relay"].note.startswith("For somebody with a small server")


def test_help_of_no_command_loads_torch() -> None:
    from client.cli.command_table import COMMANDS

    script = """
import sys
from client.cli.main import run
for command in sys.argv[1:]:
    print("CODE", run([command, "--help"]))
    print("HEAVY", command, {"torch", "libp2p", "textual"} & sys.modules.keys())
"""
    done = apart(sys.executable, "-c", script, *COMMANDS)
    usages = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("Usage: ")]
    assert usages == list(COMMANDS)
    for command in COMMANDS:
        assert f"HEAVY {command} set()" in done.stdout
    assert done.stdout.count("CODE 0") == len(COMMANDS)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--data", "missing.txt"],
        ["--tokenizer", "missing.json"],
        ["--width", "33"],
        ["--lr", "-1"],
        ["--stages", "99"],
        ["--out", "/nowhere/x.swarm"],
    ],
)
def test_create_checks_what_was_chosen_before_it_loads_torch(
    tmp_path: Path, wrong: list[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abcd" * 5000)
    usual = {"--data": str(text), "--out": str(tmp_path / "x.swarm")}
    chosen = [part for flag in (usual | {wrong[0]: wrong[1]}).items() for part in flag]
    code, loaded, _ = _run("create", *chosen, VOLUNTEER_HOME=str(tmp_path))
    assert code in (ExitCode.USAGE, ExitCode.CONFIG)
    assert "torch" not in loaded


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["status", "peers"], ["pause"], ["attach", "--help"]],
)
def test_what_asks_a_running_node_loads_nothing_heavy(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="vol") as name, node_of(Path(name), FakeProvider()):
        code, loaded, _ = _run(*arguments, VOLUNTEER_HOME=name)
    assert code == 0
    assert not (HEAVY | {"psutil"}) & loaded
