"""Volunteers with encrypted files train, restart and sample, and their disks show nothing.

One encrypts before it takes part, the other after its first session.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.cli.diagnosis.checks import check_at_rest
from client.errors import ExitCode
from client.lab.local_swarm import environment
from client.store.paths import home_folders
from tests.support.e2e_local import HOST, snapshot_of, wait_for

pytestmark = pytest.mark.long
WORDS = b" quick brown foxes jump over the lazy dog\n"
MODEL = ("--layers", "2", "--width", "32", "--heads", "2", "--context", "16", "--stages", "2")
STEPS = 400
RUN = ("--steps", str(STEPS), "--microbatch", "2", "--microbatches", "4", "--no-measure")
JOIN = ("join", "--headless", "--listen-host", HOST, "--threads", "1", "--swarm")


class Node:
    """A running volunteer, as ``wait_for`` asks for it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self.process, self._log = name, process, log

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def log_tail(self, lines: int) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])


class Disks:
    """The homes of two volunteers; the first is the founder's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._nodes: list[Node] = []
        (folder / "passphrase").write_text("correct horse\n")

    def data(self, name: str) -> Path:
        return home_folders(self.folder / name).data

    def environment(self, name: str) -> dict[str, str]:
        own = {"VOLUNTEER_PASSPHRASE_FILE": str(self.folder / "passphrase")}
        return {**environment(self.folder / name), "VOLUNTEER_LISTEN_HOST": HOST, **own}

    def volunteer(self, name: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "client.cli.main", *arguments],
            env=self.environment(name),
            cwd=self.folder,
            capture_output=True,
            timeout=120,
            check=False,
        )

    def join(self, name: str) -> Node:
        """Start a node."""
        path = self.folder / f"{name}.log"
        with path.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "client.cli.main", *JOIN, "x.swarm"],
                env=self.environment(name),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._nodes.append(Node(name, process, path))
        return self._nodes[-1]

    def version(self, name: str) -> int:
        """The newest checkpoint that a home has of both stages' steps."""
        names = [path.stem for path in self.data(name).glob("checkpoints/*/stage-*.safetensors")]
        return max((int(one.partition("-v")[2]) for one in names), default=0)

    def step(self, name: str) -> int:
        now = snapshot_of(self.folder / name)
        return -1 if now is None else now.step

    def show(self, name: str) -> list[Path]:
        """Return the files that show the text or the weights."""
        marks = (WORDS, b"__metadata__", b"data_offsets")
        files = [path for path in self.data(name).rglob("*") if path.is_file()]
        return [path for path in files if any(mark in path.read_bytes() for mark in marks)]

    def end(self) -> None:
        for node in self._nodes:
            node.process.kill()
            node.process.wait()


@pytest.fixture
def disks() -> Iterator[Disks]:
    with tempfile.TemporaryDirectory(prefix="vol") as name:
        made = Disks(Path(name))
        yield made
        made.end()


def test_encrypted_homes_train_restart_and_sample(disks: Disks) -> None:
    (disks.folder / "book.txt").write_bytes(b"".join(b"%d" % n + WORDS for n in range(999)))
    assert disks.volunteer("a", "encrypt").returncode == 0
    flags = ("--name", "e2e", "--checkpoint-every", "2", "--out", "x.swarm", "--data", "book.txt")
    done = disks.volunteer("a", "create", *MODEL, *RUN, *flags)
    assert done.returncode == 0, done.stderr
    (disks.folder / "book.txt").unlink()
    both = [disks.join("a"), disks.join("b")]
    wait_for(lambda: min(map(disks.version, "ab")) >= 4 or None, "both have checkpoints", both)
    disks.end()
    assert not disks.show("a")
    assert disks.show("b")
    before = disks.version("a")
    assert disks.volunteer("b", "encrypt").returncode == 0
    assert not disks.show("b")

    (disks.folder / "passphrase").write_text("wrong\n")
    refused = disks.join("a")
    assert refused.process.wait(60) == ExitCode.REFUSED
    assert disks.version("a") == before

    (disks.folder / "passphrase").write_text("correct horse\n")
    both = [disks.join("a"), disks.join("b")]
    wait_for(lambda: min(map(disks.step, "ab")) > before + 4 or None, "they go on", both)
    # so small a model leaves a version behind before anybody can fetch it; the last one stays
    wait_for(lambda: min(map(disks.version, "ab")) == STEPS or None, "the run is complete", both)
    sampled = disks.volunteer("a", "sample", "1", "--length", "20")
    assert sampled.returncode == 0, sampled.stderr
    exported = disks.volunteer("b", "export", "--out", "model")
    assert exported.returncode == 0, exported.stderr
    disks.end()
    for name in ("a", "b"):
        assert not disks.show(name)
        check = check_at_rest(disks.data(name))
        assert check.status == "ok", check.words
        verified = disks.volunteer(name, "checkpoint", "verify")
        assert verified.returncode == 0, verified.stdout
    assert disks.volunteer("a", "encrypt", "--undo").returncode == 0
    assert disks.show("a")
