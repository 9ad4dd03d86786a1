"""The first hour of a founder, a volunteer and an administrator, by the documents' commands.

Each begins in a fresh home and ends in training that advances. They share one little swarm, whose
founder runs all the time; what the commands do in all their forms has tests of its own.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from client.control.snapshot import Snapshot
from client.lab.local_swarm import environment
from tests.support.cli_process import REPOSITORY, Volunteer
from tests.support.e2e_local import HOST, kill_nodes, parsed, snapshot_of, wait_for

PROMPT = "shell$ "


class Shell:
    """A shell with ``volunteer`` in it, in a real terminal (tmux), which tests type into and read.

    Args:
        folder: its working folder, which gets the command and the terminal's socket.
        home: of the volunteer.
        settings: further variables.
    """

    def __init__(self, folder: Path, home: Path, **settings: str) -> None:
        self._socket = str(folder / "tmux")
        command = folder / "volunteer"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m client.cli.main "$@"\n')
        command.chmod(0o755)
        variables = {"PS1": PROMPT, "PYTHONPATH": str(REPOSITORY), "LANG": "C.UTF-8"}
        inherited = environment(home)
        self._tmux(
            *("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24"),
            *("-c", str(folder), "sh"),
            variables={
                **inherited,
                **variables,
                **settings,
                "PATH": f"{folder}:{inherited['PATH']}",
            },
        )

    def close(self) -> None:
        self._tmux("kill-server")

    def type(self, line: str) -> None:
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)

    def process(self, command: str) -> psutil.Process:
        """Return the process that runs a command of ``volunteer``."""
        shell = psutil.Process(int(self._tmux("display-message", "-p", "#{pane_pid}")))
        return next(one for one in shell.children(recursive=True) if command in one.cmdline())

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Return the match of what the screen shows once it shows it."""
        screen = ""

        def look() -> re.Match[str] | None:
            nonlocal screen
            screen = self._tmux("capture-pane", "-p")
            return re.search(pattern, screen)

        try:
            return wait_for(look, f"{pattern!r} is shown", timeout_s=120.0)
        except AssertionError as error:
            raise AssertionError(f"{error}; the screen shows:\n{screen}") from error

    def _tmux(self, *arguments: str, variables: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, *arguments],
            env=variables,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return done.stdout


pytestmark = pytest.mark.slow
HERE = {
    "VOLUNTEER_LISTEN_HOST": HOST,
    "VOLUNTEER_THREADS": "1",
    "VOLUNTEER_COMPUTE_SHARE": "50%",  # the commands have to get on, too
    "OMP_NUM_THREADS": "1",
}
SMALL = ("--layers", "2", "--width", "32", "--heads", "2", "--context", "64")
WITH_TRANSFORMERS = """
import json, sys
from transformers import AutoTokenizer, pipeline
words = AutoTokenizer.from_pretrained(sys.argv[1])("To be")["input_ids"]
made = pipeline("text-generation", model=sys.argv[1])("To be", max_new_tokens=4)
print(json.dumps([words, made[0]["generated_text"]]))
"""


class Person:
    """Somebody with a home and a working folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.home, self.work = folder / name, folder / f"{name}-work"
        self.work.mkdir()
        self.volunteer = Volunteer(self.home, self.work, **HERE, HOME=str(self.work))
        self.variables = self.volunteer.environment
        self.variables.pop("XDG_CONFIG_HOME", None)

    def ok(self, *arguments: str) -> str:
        """Run a command that must succeed; return its stdout."""
        done = self.volunteer(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def trains_on(self) -> Snapshot:
        """Wait until this one serves the stage and the swarm is two steps further than now."""
        begun = wait_for(self._serving, "it serves")
        return wait_for(lambda: self._serving(begun.step + 2), "training advances")

    def _serving(self, step: int = 0) -> Snapshot | None:
        now = snapshot_of(self.home)
        serves = now is not None and now.state == "training" and now.seats
        return now if now is not None and serves and now.step >= step else None

    def end(self) -> None:
        """Kill whatever still runs."""
        kill_nodes(self.home)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vol") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def founder(folder: Path) -> Iterator[Person]:
    """A founder with a text of her own, who has founded a swarm and takes part."""
    person = Person(folder, "founder")
    (person.work / "book.txt").write_text("To be, or not to be, that is the question. " * 400)
    made = person.ok(
        *("create", "--data", "book.txt", "--stages", "1", "--name", "ours", "--steps", "50000"),
        *("--microbatches", "8", "--microbatch", "2", "--checkpoint-every", "10", *SMALL),
        *("--averaging", "local", "--tokenizer", "train:300"),  # as their lines would have it
    )
    assert made.startswith("volunteer:")
    person.ok("join", "--swarm", "ours.swarm", "--detach")
    try:
        yield person
    finally:
        person.end()


@pytest.fixture
def invite(founder: Person) -> str:
    """A fresh invite, as the founder sends it to others."""
    return founder.ok("invite").strip()


@pytest.fixture(scope="module")
def exported(founder: Person) -> Path:
    """The founder's model in the middle of its training."""
    founder.trains_on()
    founder.ok("export", "--out", "model")
    return founder.work / "model"


def test_a_founder_uses_what_is_learned_while_it_trains(founder: Person) -> None:
    founder.trains_on()
    assert "ours" in founder.ok("status")
    assert founder.ok("invite").startswith("volunteer:")
    assert founder.ok("sample", "To be", "--length", "8").startswith("To be")
    founder.trains_on()


def test_a_founder_exports_the_model(exported: Path) -> None:
    names = {path.name for path in exported.iterdir()}
    assert {"config.json", "model.safetensors", "README.md"} <= names


def test_the_founders_export_is_a_model_for_transformers(founder: Person, exported: Path) -> None:
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    done = subprocess.run(
        [sys.executable, "-c", WITH_TRANSFORMERS, str(exported)],
        env={**founder.variables, "HF_HUB_OFFLINE": "1"},
        cwd=founder.work,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    words, text = json.loads(done.stdout.splitlines()[-1])
    assert len(words) < len("To be")
    assert text.startswith("To be")


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_a_volunteer_joins_pauses_and_leaves_in_a_terminal(
    founder: Person, folder: Path, invite: str
) -> None:
    person = Person(folder, "volunteer")
    shell = Shell(person.work, person.home, **HERE)
    try:
        (person.work / "invite").write_text(invite)
        for answer, seen in (("n", "nothing was started\nCODE 130"), ("y", "TRAINING")):
            shell.type("clear; cat invite | volunteer join --swarm -; echo CODE $?")
            shell.wait_for(r"Agree\? \[y/N\]")  # the answer, and the screen's keys, are typed
            shell.type(answer)
            shell.wait_for(seen)
        person.trains_on()
        shell.press("d")
        shell.wait_for("CODE 0")
        _is_not_touched_by_what_shows_it(person)
        assert person.ok("sample", "To be", "--length", "8").startswith("To be")
        shell.type("clear; volunteer pause --for 2h; volunteer status | grep ^state; echo CODE $?")
        shell.wait_for(r"state +paused")
        shell.wait_for("CODE 0")
        shell.type("clear; volunteer resume; echo CODE $?")
        shell.wait_for("CODE 0")
        now = person.trains_on()
        shell.type("clear; volunteer finish; echo CODE $?")
        shell.wait_for("CODE 0")
        wait_for(lambda: None if psutil.pid_exists(now.pid) else True, "it has left")
        counters = founder.trains_on().counters  # who stays has nothing to mend
        assert (counters.lost_microbatches, counters.doubled_microbatches) == (0, 0)
    finally:
        shell.close()
        person.end()


def _is_not_touched_by_what_shows_it(person: Person) -> None:
    (elsewhere := person.work / "elsewhere").mkdir()
    shell = Shell(elsewhere, person.home, **HERE)
    try:
        shell.type("volunteer attach")
        shell.wait_for("TRAINING")
        screen = shell.process("attach")
        for number in (signal.SIGSTOP, signal.SIGKILL):
            screen.send_signal(number)
            person.trains_on()
    finally:
        shell.close()


def test_an_administrator_runs_it_without_a_screen(folder: Path, invite: str) -> None:
    person = Person(folder, "admin")
    (person.work / "invite.txt").write_text(invite)
    with (person.work / "invite.txt").open() as stdin, (person.work / "log").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "client.cli.main", "join", "--swarm", "-", "--headless"],
            env=person.variables,
            cwd=person.work,
            stdin=stdin,
            stderr=stderr,
        )
    try:
        person.trains_on()
        now = parsed(person.volunteer("status", "--json"))
        assert now["pid"] == process.pid
        assert [seat["stage"] for seat in now["seats"]] == [0]
        _is_shown(person)
        person.trains_on()
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, (person.work / "log").read_text()[-2000:]
    finally:
        process.kill()
        process.wait(10)
        person.end()


def _is_shown(person: Person) -> None:
    """Attach to somebody's volunteer, and leave with Ctrl-C."""
    shown = person.work / "shown"
    with shown.open("w") as stdout:
        process = subprocess.Popen(
            [sys.executable, "-m", "client.cli.main", "attach"],
            env=person.variables,
            cwd=person.work,
            stdout=stdout,
            stderr=stdout,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    try:
        wait_for(lambda: "step " in shown.read_text() or None, "it shows the step")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, shown.read_text()
    finally:
        process.kill()
        process.wait(10)
