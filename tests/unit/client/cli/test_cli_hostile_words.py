"""Texts of strangers reach no terminal raw: control characters are replaced in text and escaped in
JSON."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.cli import screen
from client.cli.logging.log_file import LogFile
from client.cli.logging.log_writer import as_json
from client.cli.serving.metrics import exposition
from client.cli.terminal.output import json_document, json_line
from client.control.snapshot import EventView, PeerView, ReplicaView, StageView
from client.events import LogLine
from client.store.paths import home_folders
from tests.support.cli_process import Within
from tests.support.control_fakes import FakeProvider, example_matches, example_stage
from tests.support.nodes import node_of

NASTY = "a\x9b31mb\u202ec\x1b[2J\x7f\u2066\u2028\U000e0001\r\x85\u200b"


class HostileProvider(FakeProvider):
    """Everything that others name is hostile."""

    def __init__(self) -> None:
        replica = ReplicaView(peer=NASTY, version=3, state=NASTY, rate=1.0)
        super().__init__(
            swarm_name=NASTY,
            reason=NASTY,
            last_error=NASTY,
            peers=[PeerView(peer=NASTY, state=NASTY)],
            stages=[StageView(stage=0, layers=2, version=3, replicas=[replica])],
            matches=example_matches(state=NASTY, stages=[example_stage(obstacle=NASTY + "\t")]),
        )
        line = LogLine(words=NASTY, about="round")
        self._events = [EventView.of(1, 1.0, line)]


@pytest.fixture
def home(home: Path) -> Path:
    log = LogFile(home_folders(home).logs)
    log.write(json.dumps(json.loads(as_json(LogLine(words=NASTY), 1.0)), ensure_ascii=False))
    log.close()
    return home


def _raw(text: str) -> set[str]:
    return {character for character in text if not character.isprintable() and character != "\n"}


def _interrupt(_: float) -> None:
    raise KeyboardInterrupt


COMMANDS = (
    ("status",), ("status", "--watch"), ("status", "peers"), ("status", "stages"),
    ("status", "matches"), ("status", "leaderboard"), ("status", "members"), ("logs",),
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_prints_what_a_terminal_would_obey(
    within: Within, home: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "time", SimpleNamespace(sleep=_interrupt))
    with node_of(home, HostileProvider()):
        for arguments in (command, (*command, "--json")):
            done = within.ends(0, *arguments)
            assert not _raw(done.stdout), arguments
            assert not _raw(done.stderr), arguments
    assert json.dumps(NASTY).upper() in done.stdout.upper(), "nothing is lost"


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner, max_size=4)))
def test_escaped_json_means_the_same_and_prints(data: object) -> None:
    for document in (json_line(data), json_document(data)):
        assert json.loads(document) == data
        assert not _raw(document)
    assert "\n" not in json_line(data)


def test_labels_of_metrics_are_clean() -> None:
    page = exposition(HostileProvider().status()).decode()
    assert not _raw(page)
