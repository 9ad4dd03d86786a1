"""``volunteer report``: one page, from a running volunteer or from the disk, safe to open."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec.structs import replace

from client.cli.logging.log_file import LogFile
from client.cli.logging.log_writer import as_json
from client.cli.reporting.chart import chart
from client.cli.reporting.facts import (
    FaultFacts,
    HeldOutFacts,
    MemberFacts,
    PartFacts,
    Report,
    SampleFacts,
    StageFacts,
)
from client.cli.reporting.page import page
from client.cli.reporting.sources import run_facts, thinned
from client.control.matches import MatchesSnapshot
from client.control.snapshot import (
    AuditCounts,
    ContributorView,
    Counters,
    CreditView,
    EventView,
    ExpelledView,
    PeerView,
    Snapshot,
)
from client.control.updates import HeldOutPoint, StepPoint
from client.errors import ExitCode
from client.events import Entry, Event, LogLine, PeerChanged, StepCommitted
from client.store.certificates import Certificates, save_certificates
from client.store.credit import KeptCredit, save_credit
from client.store.curve import CurveFile, Sample
from client.store.paths import home_folders
from client.store.samples import KeptSample, add_samples
from client.store.swarms import SwarmStore
from protocol.evidence.proof import contradiction
from protocol.invite import SwarmFile, parse_swarm_file
from protocol.membership.advert import ADVERT
from protocol.membership.record import Record, seal
from tests.support.cli_process import Within
from tests.support.control_fakes import FakeProvider, example_matches, example_snapshot
from tests.support.nodes import node_of
from tests.support.protocol_examples import WALL, peer, signer

EVIL = "\"'><script src=http://evil/x.js></script><img src=x onerror=alert(1)>\x1b[2J\u202e&amp;"
TAGS = re.compile(
    r"html|head|meta|title|style|body|main|h1|h2|p|div|dl|dt|dd|table|tr|th|td|code|span"
    r"|svg|path|polyline|br"
)
EMPTY = ("meta", "br")
ATTRIBUTES = re.compile(
    r"lang|charset|name|content|http-equiv|class|style|title|role|aria-label|aria-hidden"
    r"|viewbox|preserveaspectratio|d|points"
)


class Reader(HTMLParser):
    """Reads a page strictly: known tags and attributes, each tag closed where it belongs."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._known(tag, attrs)
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._known(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def _known(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert TAGS.fullmatch(tag), tag
        for name, value in attrs:
            assert ATTRIBUTES.fullmatch(name), name
            if name == "style":
                assert re.fullmatch(r"(width|top|left):-?[\d.]+%", value or "")


def read(text: str) -> str:
    """Return what a page says; fails if it is not well formed or has what it must not have."""
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return " ".join(" ".join(reader.texts).split())


@pytest.fixture
def swarm(within: Within, home: Path) -> SwarmFile:
    """A swarm known here, of which nobody has trained anything."""
    path = home / "x.swarm"
    assert within("create", "--no-measure", "--name", "mine", "--out", str(path)).returncode == 0
    known = parse_swarm_file(path.read_text())
    SwarmStore(home_folders(home).swarms).remember(known)
    return known


def full(swarm: SwarmFile, text: str) -> Report:
    """A report in which everything that others write is ``text``."""
    run = replace(
        run_facts(swarm, 40),
        swarm_name=text,
        data=text,
        architecture=text,
        parts=[PartFacts(name=text, share=0.5, epochs=1.5)],
        purpose=text,
    )
    curve = [StepPoint(step, 1e9 + step, 5 - step / 10, 100.0 + step % 7) for step in range(40)]
    return Report(
        made=1e9,
        version="0.1.0",
        source="running",
        state=text,
        run=run,
        curve=curve,
        tokens_per_s=100.0,
        own_tokens_per_s=50.0,
        time_left_s=3600.0,
        stages=[StageFacts(stage=0, layers=2, version=40, serving=1, words=text)],
        members=[
            MemberFacts(
                peer=text,
                name=text,
                state=text,
                stages=[0],
                microbatches_per_s=1.0,
                standing=text,
                fault=text,
            )
        ],
        contributors=[
            ContributorView(peer=text, name=text, microbatches=40, share=0.4, vouchers=2),
            ContributorView(peer=text, unvouched=9),
        ],
        credit=CreditView(microbatches=7, tokens=700, sent_bytes=9, since=1e9),
        faults=[
            FaultFacts(
                time=1e9,
                step=20,
                words=text,
                stages=[0, 1],
                in_order=False,
                repaired_after_s=2.5,
                steps_lost=1,
                notes=[text],
            )
        ],
        counters=Counters(rerouted_microbatches=3),
        audits=AuditCounts(agree=2, disagree=1),
        expelled=[ExpelledView(peer=text, reason=text, by="charges")],
        held_out=HeldOutFacts(
            every=20,
            tokens=4096,
            bits_per_nat=0.5,
            curve=[HeldOutPoint(0, 1e9, 5.5), HeldOutPoint(20, 1e9, 4.0)],
        ),
        samples=[SampleFacts(version=20, prompt=text, text=text)],
    )


def test_the_page_needs_nothing_but_itself_and_says_what_is_known(swarm: SwarmFile) -> None:
    text = page(full(swarm, "fine"))
    told = read(text)
    for part in (
        "fine",
        "40 of ",
        "about 1 h 00 min",
        "told by the running volunteer",
        "lowest 1.1000 at step 39",
        "1 fault, all repaired",
        "it served stages 0 and 1",
        "1 step done again",
        "3 contributions, 2 agree, 1 does not agree",
        "its stage",
        "40.0%",
        "2 others",
        "one other alone",
        "held-out loss 4.0000 nats per token, 2.0000 bits per byte, after step 20, on 4,096 tokens",
        "lowest 4.0000 after step 20; computed by the swarm every 20 steps",
        "What it writes",
    ):
        assert part in told, part
    assert text.count('class="over"') == 1
    assert not re.search(r"https?:|//|url\(|@import|<script|<link|<iframe", text)
    assert text.count("<svg") == 2


def test_whatever_others_write_is_only_text(swarm: SwarmFile) -> None:
    text = page(full(swarm, EVIL))
    told = read(text)
    assert "<script" not in text
    assert "<img" not in text
    assert not {c for c in text if not c.isprintable() and c != "\n"}
    assert told.count("<script src=") >= 9, "it is shown as it is"


def test_addresses_and_secrets_of_free_words_are_left_out(swarm: SwarmFile) -> None:
    text = page(full(swarm, "no answer from /ip4/203.0.113.7/tcp/4001, secret=abcdef, said it"))
    faults = read(text)[read(text).index("Faults") :]
    assert "[address-1]" in faults
    assert "203.0.113.7" not in faults
    assert "abcdef" not in faults


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(1.0, 2.0)],
        [(1.0, 2.0), (1.0, 3.0)],
        [(0.0, float("nan")), (1.0, float("inf")), (2.0, 1e300)],
    ],
)
def test_without_two_points_there_is_no_chart(points: list[tuple[float, float]]) -> None:
    assert chart(points, "x") == ""


def test_a_chart_stays_within_its_frame_and_has_round_figures() -> None:
    points = [(float(x), 5.0 - x / 100) for x in range(300)] + [(300.0, 1e8)]
    drawn = chart(points, "loss", [50.0, 1e6])
    read(drawn)
    spots = re.findall(r"(-?[\d.]+),(-?[\d.]+)", " ".join(re.findall(r'points="([^"]*)"', drawn)))
    assert len(spots) == 2 * len(points), "the points, and the smoothed line"
    assert all(0 <= float(x) <= 1000 and 0 <= float(y) <= 400 for x, y in spots)
    assert drawn.count('class="mark"') == 1, "a mark outside is left out"
    assert '">100</span>' in drawn


def test_what_is_never_negative_has_no_figures_below_zero() -> None:
    drawn = chart([(0.0, 0.0), (1.0, 19_000.0), (2.0, 19_500.0)], "speed")
    assert '">0</span>' in drawn
    assert '">-' not in drawn


def test_a_speed_that_is_not_known_yet_is_not_drawn(swarm: SwarmFile) -> None:
    known = full(swarm, "fine")
    slow = [replace(point, tokens_per_s=0.0) for point in known.curve]
    assert page(replace(known, curve=slow)).count("<svg") == 1, "the loss alone"


def test_a_long_curve_keeps_its_ends() -> None:
    points = [StepPoint(step, 0.0, 1.0, 1.0) for step in range(2000)]
    found = thinned(points, 500)
    assert len(found) == 500
    assert (found[0].step, found[-1].step) == (0, 1999)
    assert thinned(points[:3], 500) == points[:3]


# --- from the disk -------------------------------------------------------------------------


def left_behind(home: Path, swarm: SwarmFile) -> None:
    """What a volunteer that has ended leaves: a curve, its work, its log, evidence."""
    folders = home_folders(home)
    CurveFile(folders.curve(swarm.swarm)).replace(
        [Sample(step, 1e9 + step, 5.0 - step, 100.0) for step in range(4)]
    )
    CurveFile(folders.held_out(swarm.swarm)).append(Sample(0, 1e9, 5.5452, 0.0))
    add_samples(folders.samples(swarm.swarm), [KeptSample(50, "def f(", "x):", 1e9)])
    save_credit(folders.credit(swarm.swarm), KeptCredit(12, 3400, 5_600_000, 1e9))
    one, two = (
        seal(signer(1), ADVERT, Record(peer(1), 7, int(WALL), 600, body), swarm.swarm)
        for body in (b"one", b"two")
    )
    proof = contradiction(one, two)
    assert proof is not None
    kept = Certificates(1, swarm.swarm, (proof,), ())
    save_certificates(folders.proofs(swarm.swarm), kept)
    log, at = LogFile(folders.logs), 1e9
    events: list[Event] = [
        LogLine(words=f"volunteer 0.1.0 takes part in mine ({swarm.swarm[:12]}) as me; device cpu"),
        StepCommitted(words="", step=1, loss=4.0, tokens=8),
        PeerChanged(
            words="abcdef is down: it fell silent", peer="abcdef", state="down", stages=(1,)
        ),
        StepCommitted(words="", step=2, loss=3.0, tokens=12),
        LogLine(words=f"volunteer 0.1.0 takes part in other ({'cd' * 6}) as me; device cpu"),
        PeerChanged(words="ghijkl is down: it fell silent", peer="ghijkl", state="down"),
    ]
    for event in events:
        log.write(as_json(event, at := at + 2.0))
    log.close()


def test_without_a_running_volunteer_the_disk_tells(
    home: Path, swarm: SwarmFile, within: Within, tmp_path: Path
) -> None:
    left_behind(home, swarm)
    another = parse_swarm_file(made(within, home / "y.swarm", "other"))
    SwarmStore(home_folders(home).swarms).remember(another)
    out = tmp_path / "page.html"
    done = within("report", "--swarm", "mine", "--out", str(out))
    assert done.returncode == ExitCode.OK, done.stderr
    assert done.stdout == f"{out}\n"
    told = read(out.read_text())
    for part in (
        "read from the disk of a volunteer that does not run",
        f"4 of {swarm.manifest.steps:,}",
        "2.0000 nats per token",
        "3400",
        "5.60 MB",
        "abcdef was lost: it fell silent",
        "it served stage 1",
        "2.0 s",
        "1 fault, all repaired",
        "signed two different adverts with one number",
        "held-out loss 5.5452 nats per token, 8.0000 bits per byte, after step 0",
        "50 def f( x):",
    ):
        assert part in told, part
    assert "ghijkl" not in told, "a fault of another swarm"


def test_the_page_has_the_steps_that_the_founder_has_added(
    swarm: SwarmFile, within: Within, tmp_path: Path
) -> None:
    assert within("extend", "--steps", "777", "--yes").returncode == ExitCode.OK
    out = tmp_path / "page.html"
    assert within("report", "--swarm", "mine", "--out", str(out)).returncode == ExitCode.OK
    assert "0 of 777" in read(out.read_text())


def made(within: Within, path: Path, name: str) -> str:
    """Found another swarm; return its file's text."""
    assert within("create", "--no-measure", "--name", name, "--out", str(path)).returncode == 0
    return path.read_text()


def test_a_swarm_joined_a_moment_ago_has_a_page_too(
    swarm: SwarmFile, within: Within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert within("report").returncode == ExitCode.OK
    told = read((tmp_path / "report.html").read_text())
    assert f"{swarm.manifest.founder[-6:]} you" in told
    assert "none yet" in told
    assert "It has contributed nothing yet" in told


def test_programs_get_the_same_facts_and_no_file(
    home: Path, swarm: SwarmFile, within: Within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    left_behind(home, swarm)
    told = json.loads(within("report", "--json").stdout)
    assert (told["source"], told["run"]["step"], told["schema_version"]) == ("disk", 4, 1)
    assert [one["peer"] for one in told["expelled"]] == [peer(1)]
    assert [one["repaired_after_s"] for one in told["faults"]] == [2.0]
    assert list(tmp_path.glob("*.html")) == []


# --- from a running volunteer --------------------------------------------------------------


class Busy(FakeProvider):
    """A volunteer of a swarm known here, one of whose members went away."""

    def __init__(self, swarm: SwarmFile, text: str) -> None:
        super().__init__()
        self._swarm, self._text = swarm, text
        news: list[Event] = [
            PeerChanged(words=f"abcdef is down: {text}", peer=text, state="down", stages=(1,)),
            StepCommitted(words="", step=2, loss=3.0, tokens=12),
        ]
        self._events = [
            EventView.of(Entry(n, 2e9 + n, event)) for n, event in enumerate(news, start=1)
        ]

    def snapshot(self) -> Snapshot:
        return example_snapshot(
            swarm=self._swarm.swarm,
            swarm_name=self._text,
            steps=self._swarm.manifest.steps,
            reason=self._text,
            peers=[PeerView(peer=self._text, state=self._text)],
            expelled=[ExpelledView(peer=self._text, reason=self._text)],
            eta_s=3600.0,
        )

    def matches(self, everything: bool) -> MatchesSnapshot:
        return example_matches(swarm=self._swarm.swarm)

    def held_out(self, points: int) -> list[HeldOutPoint]:
        return [HeldOutPoint(0, 2e9, 5.5), HeldOutPoint(2, 2e9, 3.5)]

    def history(self, points: int) -> list[StepPoint]:
        return [StepPoint(step, 2e9, 3.0 - step, 100.0) for step in range(3)]


def test_a_running_volunteer_tells_of_members_faults_and_time_left(
    home: Path, swarm: SwarmFile, within: Within, tmp_path: Path
) -> None:
    left_behind(home, swarm)
    out = tmp_path / "page.html"
    with node_of(home, Busy(swarm, "hello")):
        done = within("report", "--out", str(out))
        facts = json.loads(within("report", "--json").stdout)
    assert done.returncode == ExitCode.OK, done.stderr
    told = read(out.read_text())
    for part in (
        "told by the running volunteer",
        "training: hello",
        "100 tokens/s in the swarm, 50 of it by this volunteer",
        "2 members",
        "nobody yet: the swarm waits",
        "2 faults, all repaired",
        "held-out loss 3.5000 nats per token",
    ):
        assert part in told, part
    assert facts["source"] == "running"
    assert [one["version"] for one in facts["held_out"]["curve"]] == [0, 2]
    assert facts["time_left_s"] == 3600.0
    assert [one["time"] for one in facts["faults"]] == [2e9 + 1, 1e9 + 6], "earlier ones: the log"


def test_a_running_volunteer_passes_on_what_is_hostile_as_text(
    home: Path, swarm: SwarmFile, within: Within, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    with node_of(home, Busy(swarm, EVIL)):
        assert within("report", "--out", str(out)).returncode == ExitCode.OK
    text = out.read_text()
    assert "<script src=" in read(text)
    assert "<script" not in text


# --- errors --------------------------------------------------------------------------------


def test_what_is_wrong_is_said_with_what_to_do(within: Within, home: Path) -> None:
    done = within("report")
    assert done.returncode == ExitCode.USAGE
    assert "no swarm is known on this machine" in done.stderr
    done = within("report", "--swarm", f"volunteer:{'ab' * 32}?peer={MEMBER}")
    assert done.returncode == ExitCode.USAGE
    assert "join it first" in done.stderr


MEMBER = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWQVJeEspFqUfxUYGgL7GTpevs1mT5aLgaFYv7TSjBuRer"


def test_only_a_report_is_overwritten(swarm: SwarmFile, within: Within, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("dear diary")
    done = within("report", "--out", str(out))
    assert done.returncode == ExitCode.USAGE
    assert "--force" in done.stderr
    assert out.read_text() == "dear diary"
    assert within("report", "--out", str(out), "--force").returncode == ExitCode.OK
    before = out.read_text()
    assert within("report", "--out", str(out)).returncode == ExitCode.OK, "it is ours now"
    assert out.read_text()[:200] == before[:200]


@pytest.mark.parametrize("name", ["folder", "missing/page.html"])
def test_what_cannot_be_written_is_named(
    swarm: SwarmFile, within: Within, tmp_path: Path, name: str
) -> None:
    (tmp_path / "folder").mkdir()
    done = within("report", "--out", str(tmp_path / name))
    assert done.returncode == ExitCode.RUNTIME
    assert f"cannot write {tmp_path / name}" in done.stderr
    assert "choose another --out" in done.stderr
