"""Command lines with all that they print, as kept in ``transcripts``: a file for each scene, or
for a part of it (``scene-part.txt``).

A command stands behind ``$``, with what a person types behind ``<``, or a program behind ``<<``;
``cat`` and ``ls`` show what is there, ``rm`` removes it; of what it says a ``grep`` behind it shows
some lines. Behind ``!`` stands what it says on stderr, behind ``?`` the code with which it ends,
unless that is 0. Commands that say the same stand above it together; indented JSON has a line for
each key, and for each object in a list. After a change that is meant, set ``UPDATE_SNAPSHOTS=1``
and read the difference.
"""

import io
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from client.cli import screen
from client.cli.commands import doctor, join, relay
from client.cli.commands.create import sign, write_swarm_file
from client.cli.diagnosis.checks import Check
from client.cli.logging.log_file import LogFile
from client.cli.logging.log_writer import as_json
from client.cli.serving.background import Handover
from client.control.amended import amended
from client.control.methods import Impossible
from client.control.snapshot import Amended, InvitedMember, InviteView, PauseView, SeatView
from client.control.updates import StepPoint
from client.events import LogLine
from client.plan.model import Machine
from client.store.last_run import RunRecord
from client.store.paths import Kept, home_folders, make_private
from client.store.persisted import Persisted
from client.store.records import KeptContributions, KeptEvidence
from client.store.swarms import SwarmStore
from client.store.texts import TextStore
from protocol.amendments.amendment import sign_amendment
from protocol.amendments.book import Amendments, KeptAmendments
from protocol.amendments.changes import Changes
from protocol.amendments.draft import draft
from protocol.audit.charges import CHARGE, KIND, Charge
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId
from protocol.invite import parse_target
from protocol.wire.envelope import Signer
from protocol.wire.parts import Proof, VotedOut
from tests.support.cli_process import Terminal, Within
from tests.support.control_fakes import FakeProvider, example_invite, example_snapshot
from tests.support.nodes import node_of
from tests.support.protocol_examples import manifest, peer, proof_of, signer
from tests.support.saved_swarms import (
    SIGNER,
    WORDS,
    little_swarm,
    llama_folder,
    lora_swarm,
    write_checkpoints,
)

FOLDER = Path(__file__).parent / "transcripts"
NOW = 1e9
"""9 September 2001: never today, of which a clock says no date."""
CHECKS = (
    [Check("swarm", "ok", "fine"), Check("swarm", "warn", "odd", "read volunteer logs")],
    [Check("gpu", "fail", "none")],
)
"""What ``doctor`` finds, and what it finds the second time."""
ANNA = PeerId("12D3KooW4AphPb")
ALONE = {"seats": [SeatView(stage=0, version=3, state="serving", staying=0)]}
"""The only replica of its stage."""


@contextmanager
def nobody(home: Path) -> Iterator[None]:
    """No volunteer, and no swarm; of the last start a log, and how it ended."""
    make_private(home / "data")
    log = LogFile(home_folders(home).logs)
    for age_s, level, words in ((7200, "info", "old"), (60, "info", "new"), (30, "error", "a\x1b")):
        log.write(as_json(LogLine(words=words, level=level), NOW - age_s))  # type: ignore[arg-type]
    log.close()
    yield


class Founders(FakeProvider):
    """A node of a private swarm of a hundred steps that its owner has founded, at step 40."""

    def __init__(self) -> None:
        self.members = [
            InvitedMember(peer=who, invited_by=by, depth=int(bool(by)), linked=False, ours=bool(by))
            for who, by in ((ANNA, ""), ("12D3KooWBad\x1b[31m", ANNA), ("12D3KooWGone", ANNA))
        ]
        gone = {"expelled_by": ANNA, "reason": "sends noise"}
        self.members[-1] = msgspec.structs.replace(self.members[-1], **gone)
        super().__init__(members=self.members)
        self.signer = Signer(b"\x03" * 32)
        self.swarm = sign(manifest(self.signer.peer), self.signer, ())
        self.book = Amendments(self.swarm.manifest, self.swarm.swarm)

    def amend(self, changes: Changes, *, sign: bool) -> Amended:
        try:
            said = draft(self.book, self.swarm.manifest.optimizer.lr, changes, 40)
        except LocalProtocolError as error:
            raise Impossible(str(error)) from error
        if sign:
            self.book.take(sign_amendment(self.signer, said, self.swarm.swarm))
        return amended(self.book, said, 40, signed=sign)

    def invite(self, *, once: bool = False, life_s: float | None = None) -> InviteView:
        return example_invite(file="all of it", notes=[f"once: {once}, after {life_s} s"])

    def expel(self, member: str, reason: str) -> InvitedMember:
        for one in self.members:
            if one.peer.endswith(member):
                return msgspec.structs.replace(one, reason=reason)
        raise Impossible(f"no member met here is called {member}; see: volunteer status members")


@contextmanager
def founders(home: Path) -> Iterator[None]:
    with node_of(home, Founders()):
        yield


class Draining(FakeProvider):
    """Would lose a version, unless it may."""

    def pause(self, until: float | None, reason: str, *, discard: bool = False) -> Any:
        if not discard:
            raise Impossible("cannot save version 65 of stage 0; --discard leaves anyway")
        return super().pause(until, reason, discard=discard)

    def finish(self, *, discard: bool = False) -> None:
        if not discard:
            raise Impossible("cannot save version 65 of stage 0; --discard leaves anyway")
        super().finish()


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """A volunteer without whom its stage has nobody."""
    held = PauseView(reason="on battery", until=None, since=1.0)
    with node_of(home, Draining(paused=held, **ALONE)):
        yield


@contextmanager
def leaving(home: Path) -> Iterator[None]:
    """A volunteer that leaves when it is asked to, and does not save what it should."""
    make_private(home / "data")
    record = RunRecord(home / "data")

    class Leaving(FakeProvider):
        def finish(self, *, discard: bool = False) -> None:
            if not discard:
                record.end("version 65 of stage 0 could not be saved", "free space", 1)
            super().finish()

    provider = Leaving(reason="", **ALONE)
    with node_of(home, provider, lambda: provider.stops > 0):
        yield


@contextmanager
def disk(home: Path) -> Iterator[None]:
    """Something of every kind that is kept."""
    data = home_folders(home).data
    names = (
        *("texts/a.bin", "texts/.b.7.tmp", "snapshots/s.bin", "checkpoints/x/stage-0-v1.bin"),
        *("gathered/tmp1/stage-0-v1.bin", "checkpoints/x/stage-0-v2.bin.damaged"),
        *("swarms/.x.123.tmp", "logs/volunteer.log", "mine.txt"),
    )
    for number, name in enumerate(names):
        path = data / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(b"x" * (1000 + 100 * number))
    data.chmod(0o700)
    yield


def _text(home: Path) -> Path:
    (home / "book.txt").write_text(WORDS)
    return home / "book.txt"


@contextmanager
def founding(home: Path) -> Iterator[None]:
    """Texts and rows of many kinds."""
    pytest.importorskip("tokenizers", reason="needs the extra volunteer[tokens]")
    _text(home)
    (home / "rows.jsonl").write_text('{"text": "good"}\n{"text": 5}\n' + '{"text": "good"}\n' * 9)
    talk = ({"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(60))
    (home / "latin.txt").write_bytes(b"caf\xe9 " * 99)
    (home / "pictures").mkdir()
    for number in range(5):
        (home / "pictures" / f"{number}.png").touch()
    (home / "pictures" / "words.txt").write_text(WORDS)
    (home / "talk.jsonl").write_text("\n".join(map(json.dumps, talk)))
    yield


@contextmanager
def known(home: Path) -> Iterator[None]:
    """Three swarms of one text that are known, two of them by one name; all is kept of the one that
    was called something to be shown as it is."""
    folders = home_folders(home)
    make_private(folders.data)
    made = little_swarm(_text(home))
    one, *twins = (
        sign(msgspec.structs.replace(made.manifest, name=name, seed=seed), SIGNER, made.peers)
        for name, seed in (("one", 1), ("twin", 2), ("twin", 3))
    )
    for swarm in (one, *twins):
        SwarmStore(folders.swarms).remember(swarm)
    text = TextStore(folders.texts).path(one.manifest.data.digest)
    text.parent.mkdir()
    text.touch()
    write_swarm_file(home / "x.swarm", one)
    write_checkpoints(one, folders.of(one.swarm, Kept.CHECKPOINTS), 5, [0, 1])
    counted = KeptContributions({0: 5}, {ANNA: 7}, {ANNA: "A` <img>"})
    Persisted(folders.of(one.swarm, Kept.CONTRIBUTIONS), KeptContributions).save(counted)
    told = Persisted(folders.of(one.swarm, Kept.HELD_OUT), list[StepPoint])
    told.save([StepPoint(4, 0.0, 5.5, 0.0), StepPoint(6, 0.0, 1.0, 0.0)])
    book = Amendments(one.manifest, one.swarm)
    longer = draft(book, one.manifest.optimizer.lr, Changes(steps=400), 4)
    book.take(sign_amendment(SIGNER, longer, one.swarm))
    Persisted(folders.of(one.swarm, Kept.AMENDMENTS), KeptAmendments).save(book.kept)
    genuine, foreign = (proof_of(swarm=swarm.swarm) for swarm in (one, twins[0]))
    Persisted(home / "sound", KeptEvidence).save(KeptEvidence((genuine,)))
    body = genuine.second.body + b"!"
    changed = Proof(genuine.first, msgspec.structs.replace(genuine.second, body=body))
    said = CHARGE.encode(Charge(1, peer(1), 12, 0, "lies"))
    own, *charges = (signer(n).sign(KIND, said, one.swarm) for n in (1, 2, 3))
    voted_out = [(charges[0], other) for other in (charges[1], charges[0], own, genuine.first)]
    kept = KeptEvidence(
        (genuine, foreign, changed), tuple(VotedOut(1, peer(1), pair) for pair in voted_out)
    )
    Persisted(folders.of(one.swarm, Kept.PROOFS), KeptEvidence).save(kept)
    yield


@contextmanager
def imports(home: Path) -> Iterator[None]:
    """A folder as transformers saves it, and one that is none."""
    llama_folder(home / "base")
    _text(home)
    (home / "empty").mkdir()
    yield


@contextmanager
def adapters(home: Path) -> Iterator[None]:
    """A swarm that trains adapters, of which this volunteer has a version."""
    pytest.importorskip("gguf", reason="needs the extra volunteer[gguf]")
    folders = home_folders(home)
    make_private(folders.data)
    swarm = lora_swarm(llama_folder(home / "base"), _text(home), TextStore(folders.texts))
    SwarmStore(folders.swarms).remember(swarm)
    write_checkpoints(swarm, folders.of(swarm.swarm, Kept.CHECKPOINTS), 5, [0, 1])
    yield


@contextmanager
def settings(home: Path) -> Iterator[None]:
    """Settings as an editor leaves them, and the administrator's."""
    lines = '# mine\nthreads = 4  # all of them\nannounce = [\n  "/ip4/1.2.3.4/tcp/5",\n]\n'
    lines += 'schedule = """\n18:00-08:00"""  # nights\nseats = 1\nthread = 3\n'
    (home / "config.toml").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    (home / "system.toml").write_text("threads = 1\ncheckpoint_keep = 3\n")
    yield


@contextmanager
def odd(home: Path) -> Iterator[None]:
    """Settings that cannot be changed by lines."""
    (home / "config.toml").write_text('nickname = """\nthreads = """\n')
    yield


@contextmanager
def plans(home: Path) -> Iterator[None]:
    """Machines, and a founded swarm."""
    (home / "machines.toml").write_text(
        '[[machine]]\ncount = 3\ngflops = 400.0\nmemory = "16GB"\nup = "20Mbit/s"\n'
        'down = "100Mbit/s"\nrtt_ms = 60\n[[machine]]\ngflops = 50.0\nmemory = "8GB"\n'
        'up = "2.5MB/s"\ndown = "100Mbit/s"\n'
    )
    (home / "many.toml").write_text("[[machine]]\ncount = 2000\n[[machine]]\n")
    (home / "wrong.toml").write_text("[[machine]]\nspeed = 3\n")
    (home / "large.toml").write_text("#" * (2 << 20))
    write_swarm_file(home / "x.swarm", little_swarm(_text(home)))
    yield


SCENES: dict[str, Callable[[Path], AbstractContextManager[None]]] = {
    scene.__name__: scene
    for scene in (
        *(nobody, founders, alone, leaving, disk, founding, known, imports, adapters, settings),
        *(odd, plans),
    )
}


def _served(told: Handover) -> int:
    """In place of a volunteer in this process: what it would be told."""
    settings, target = told.resolved.settings, type(parse_target(told.swarm)).__name__
    print(settings.relay, settings.threads, target, told.data, told.exit_when_done, told.relay_only)
    return 0


def _interrupt(_: float) -> None:
    raise KeyboardInterrupt


def _files(word: str) -> list[str]:
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]


def _by_key(said: str) -> str:
    return re.sub(r'\n(?!  "|    \{|\}|$) *', "", said) if said.startswith("{\n") else said


@pytest.fixture
def shell(home: Path, within: Within, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs a line in the home; returns all that came of it."""
    for name, value in (("TZ", "UTC"), ("COLUMNS", "80"), ("TTY_COMPATIBLE", "0")):
        monkeypatch.setenv(name, value)
    time.tzset()
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setattr("secrets.token_bytes", lambda size: b"\x07" * size)
    for module in ("client.cli.commands.plan", "client.cli.planning.machines"):
        monkeypatch.setattr(f"{module}.this_machine", lambda *_: Machine(2e12, 8e9, 1e5, 1e6))
    found = iter(CHECKS)
    monkeypatch.setattr(doctor, "examine", lambda *_: next(found))
    for command in (join, relay):
        monkeypatch.setattr(command, "serve_here", _served)
    monkeypatch.setattr(screen, "time", SimpleNamespace(sleep=_interrupt))
    monkeypatch.setattr(join, "start", lambda *_: (home / "run" / "x", example_snapshot(pid=7)))
    monkeypatch.chdir(home)
    umask = os.umask(0o022)

    def run(line: str) -> str:
        line, _, shown = line.partition(" | grep ")
        command, way, typed = line.partition(" < ")
        command, pipe, piped = command.partition(" << ")
        stdin = Terminal(f"{typed}\n") if way else io.StringIO(f"{piped}\n" if pipe else "")
        monkeypatch.setattr(sys, "stdin", stdin)
        words = [name for word in shlex.split(command) for name in _files(word)]
        if words[0] == "cat":
            said = _by_key((home / words[1]).read_text(encoding="utf-8"))
        elif words[0] == "rm":
            said = "".join(f"{Path(name).unlink() or name}\n" for name in words[1:])
        elif words[0] == "ls":
            files = sorted(path for path in (home / words[1]).rglob("*") if path.is_file())
            said = "".join(f"{path.stat().st_mode & 0o777:o} {path}\n" for path in files)
        else:
            done = within(*words)
            errors = "".join(f"! {each}\n" for each in done.stderr.splitlines())
            end = f"? {done.returncode}\n" * (done.returncode > 0)
            said = _by_key(done.stdout) + errors + end
        said = said.replace(str(home), "HOME").removesuffix("\n") + "\n" * bool(said)
        said = re.sub(r" +$", "", said, flags=re.M)
        said = re.sub(r"\d+\.\d{6,}|\d{9,}\.\d+", lambda found: f"{float(found[0]):.6g}", said)
        said = re.sub(r"\b[0-9a-f]{64}\b", "ID", said)
        said = re.sub(r"(?<=[( ])[0-9a-f]{12}(?=[):])", "ID", said)
        return "".join(row for row in said.splitlines(keepends=True) if re.search(shown, row))

    yield run
    os.umask(umask)
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("name", [path.stem for path in sorted(FOLDER.glob("*.txt"))])
def test_commands_say_what_is_kept(name: str, home: Path, shell: Callable[[str], str]) -> None:
    file = FOLDER / f"{name}.txt"
    lines = file.read_text(encoding="utf-8").splitlines()
    with SCENES[name.partition("-")[0]](home):
        answers = [(line, shell(line[2:])) for line in lines if line.startswith("$ ")]
    said = ""
    for answer, alike in groupby(answers, itemgetter(1)):
        said += "".join(f"{line}\n" for line, _ in alike) + (answer or "(nothing)\n")
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(said, encoding="utf-8")
    assert said == file.read_text(encoding="utf-8")
