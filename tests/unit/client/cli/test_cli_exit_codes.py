"""Errors and their exit codes: a table of command lines."""

import io
import json
import signal
import socket
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from client.cli import main, screen
from client.cli.main import run
from client.control.sockets import socket_path
from client.errors import UserError
from client.store.paths import make_private, runtime_folder
from model_zoo.specs.packages import MissingPackage
from tests.support.cli_process import Terminal, Within, apart

SWARM_ID = "ab" * 32
PEER = "12D3KooWQVJeEspFqUfxUYGgL7GTpevs1mT5aLgaFYv7TSjBuRer"


def test_more_threads_than_cores_are_refused(within: Within) -> None:
    for command in ("join --swarm x --threads 1024", "config set threads 1024"):
        done = within.ends(78, *command.split())
        assert "1024 threads are more than the" in done.stderr


def test_bytes_on_stdin_that_are_no_text_are_refused(
    within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor has saved the invite as UTF-16."""
    saved = io.BytesIO("volunteer:".encode("utf-16"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(saved, encoding="utf-8"))
    assert "it is not text" in within.ends(2, "join", "--swarm", "-").stderr


def test_what_the_locale_cannot_show_is_no_fault_of_the_program(tmp_path: Path) -> None:
    named = {"PYTHONIOENCODING": "latin-1", "VOLUNTEER_NICKNAME": "Анна"}
    command = (sys.executable, "-m", "client.cli.main", "config", "show")
    done = apart(*command, VOLUNTEER_HOME=str(tmp_path), **named)
    assert done.returncode == 0, done.stderr
    assert r"\u0410\u043d\u043d\u0430" in done.stdout


def test_a_volunteer_that_hangs_is_not_taken_for_none(
    within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="vol") as name, socket.socket(socket.AF_UNIX) as mute:
        monkeypatch.setenv("VOLUNTEER_HOME", name)
        path = socket_path(make_private(runtime_folder(Path(name))), SWARM_ID, PEER)
        mute.bind(str(path))
        mute.listen(8)
        done = within.ends(75, "status")
        assert f"listens on {path} but does not answer" in done.stderr
        assert "volunteer logs" in done.stderr


def test_a_changed_manifest_is_refused(within: Within, tmp_path: Path) -> None:
    path = tmp_path / "x.swarm"
    assert within("create", "--no-measure", "--out", str(path)).returncode == 0
    document = json.loads(path.read_text())
    document["manifest"] = document["manifest"].replace('"steps":200', '"steps":201')
    path.write_text(json.dumps(document))
    done = within.ends(77, "join", "--swarm", str(path))
    assert "not genuine" in done.stderr


def test_a_crash_is_one_line_and_a_file_unless_debug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ExceptionGroup("several", [ZeroDivisionError("first\nof them")])

    monkeypatch.setattr("client.cli.commands.resume.resume", fail)
    monkeypatch.setenv("VOLUNTEER_HOME", str(tmp_path))
    assert run(["resume"]) == 1
    said = capsys.readouterr().err
    assert "internal error: ZeroDivisionError: first of them" in said
    assert "Traceback" not in said
    assert "Traceback" in (tmp_path / "data" / "logs" / "errors.log").read_text()
    with pytest.raises(ExceptionGroup):
        run(["resume", "--debug"])


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            ImportError("libcudart.so.12: cannot\nopen", name="torch.cuda"),
            78,
            "volunteer: a package that this needs does not load: ImportError: libcudart.so.12: "
            "cannot open\n  volunteer doctor says which, and what to do\n",
        ),
        (
            MissingPackage("install gguf"),
            78,
            "volunteer: install gguf\n",
        ),
        (ImportError("cannot import", name="client.cli"), 1, "volunteer: internal error: Imp"),
        (UserError("no", "do it"), 1, "volunteer: no\n  do it\n"),
    ],
)
def test_what_a_command_raises_is_explained(
    within: Within, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, said: str
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("client.cli.commands.resume.resume", fail)
    done = within.ends(code, "resume")
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) <= 2


def test_what_is_closed_is_opened_before_anything_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers, done = iter((0, 7)), list[tuple[int, ...]]()
    system = SimpleNamespace(
        open=lambda *_: next(numbers),
        dup2=lambda *both: done.append(both),
        close=lambda number: done.append((number,)),
        fdopen=lambda number, mode: io.StringIO(f"{number}{mode}"),
        devnull="",
        O_RDWR=0,
    )
    monkeypatch.setattr(main, "os", system)
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "argv", ["volunteer", "--version"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert (ended.value.code, done) == (0, [(0, 0), (7, 2), (7,)])
    assert [sys.stdin.read(), sys.stderr.read()] == ["0r", "2w"]
    assert capsys.readouterr().out.startswith("volunteer ")


@pytest.mark.parametrize(
    ("stdin", "stdout", "variables", "drawn"),
    [
        (True, True, {"TERM": "xterm", "LANG": "de_DE.UTF-8"}, True),
        (True, True, {"TERM": "xterm"}, True),
        (False, True, {"TERM": "xterm"}, False),
        (True, False, {"TERM": "xterm"}, False),
        (True, True, {"TERM": "vt100"}, False),
        (True, True, {}, False),
        (True, True, {"TERM": "xterm", "LC_ALL": "C", "LANG": "de_DE.utf8"}, False),
    ],
)
def test_a_screen_takes_a_terminal_that_draws_unicode(
    monkeypatch: pytest.MonkeyPatch,
    stdin: bool,
    stdout: bool,
    variables: dict[str, str],
    drawn: bool,
) -> None:
    for name in ("TERM", "LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdin", Terminal() if stdin else io.StringIO())
    monkeypatch.setattr(sys, "stdout", Terminal() if stdout else io.StringIO())
    assert screen.can_draw() is drawn


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m client.cli.main config show | true; echo ${{PIPESTATUS[0]}}"
    done = apart("bash", "-c", command)
    assert done.stdout.strip() == "0"
    assert done.stderr == ""


@pytest.mark.parametrize("module", ["cyclopts", "client.errors", "client.cli.commands.doctor"])
def test_an_interrupt_while_modules_load_is_no_traceback(module: str) -> None:
    script = f"""
import sys
class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from client.cli.main import main
sys.argv = ["volunteer", "doctor"]
main()
"""
    done = apart(sys.executable, "-c", script)
    assert (done.returncode, done.stderr) == (130, "volunteer: interrupted\n")


def test_a_second_interrupt_while_the_first_is_told_is_no_traceback() -> None:
    script = """
import signal, sys
import client.cli.command_line as commands
from client.cli import main, screen
from client.cli.main import run
def interrupted(_):
    raise KeyboardInterrupt
class Stderr:
    def write(self, text):
        signal.raise_signal(signal.SIGINT)
commands.run_command = interrupted
kept, sys.stderr = sys.stderr, Stderr()
try:
    run([])
finally:
    sys.stderr = kept
"""
    done = apart(sys.executable, "-c", script)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
