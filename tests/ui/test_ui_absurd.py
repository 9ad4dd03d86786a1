"""Absurd numbers and words from a node or a recording break no view."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.control.snapshot import (
    AuditCounts,
    AuditsView,
    Counters,
    CreditView,
    ExpelledView,
    LimitsView,
    NetworkView,
    PauseView,
    PayingMove,
    PeerView,
    SeatView,
    TrustView,
    WorkerView,
)
from client.control.updates import StepPoint, Update
from client.ui.header import header
from client.ui.leaving import finishing
from client.ui.source.news import Link
from client.views import dashboard, logs, matching, peers, stages, swarm
from client.views import words as spell
from client.views.record import Record
from client.views.span import Box, line_width
from tests.ui import examples
from tests.ui.examples import event, replica, snapshot, stage, stage_match
from tests.ui.playing import recorded

PANELS = [
    dashboard.loss, dashboard.machine, dashboard.network, dashboard.events, stages.stage_map,
    swarm.swarm_head, matching.sentences, peers.trust_summary,
]  # fmt: skip
NARROWEST = 80
"""Below that the widgets cut what views say."""
FLOATS = [0.0, -1.0, 1e-300, 1e300, -1e300, math.inf, -math.inf, math.nan]
INTEGERS = [0, -1, 7, 2**62, -(2**62), 10**30]
floats, integers = st.sampled_from(FLOATS), st.sampled_from(INTEGERS)
words = st.sampled_from(["", "x" * 5000, "\x1b[2J\u202e", "12D3KooWabc", "\ud800", "stage 1: y"])
boxes = st.builds(Box, st.integers(1, 210), st.integers(0, 60))


@st.composite
def updates(draw: st.DrawFn) -> Update:
    """Return an update in which everything may be absurd."""
    number, real, text = (lambda: draw(integers)), (lambda: draw(floats)), (lambda: draw(words))
    told = [
        event(
            number(), text(), draw(st.sampled_from(["LogLine", "StepCommitted", "PeerChanged",
                                                    "RecoveryEvent", "other"])),
            time=real(),
            level=draw(st.sampled_from(["info", "warning", "error"])),
            data={"step": number(), "loss": real(), "peer": text(), "state": "down",
                  "phase": draw(st.sampled_from(["detected", "recovered"])), "fault": "worker"},
        )
        for _ in range(draw(st.integers(0, 4)))
    ]  # fmt: skip

    def audit_counts() -> AuditCounts:
        return AuditCounts(agree=number(), disagree=number(), unchecked=number())

    now = snapshot(
        peer=text(), swarm=text(), swarm_name=text(), reason=text(), state=draw(st.sampled_from(
            ["training", "paused", "waiting"])), step=number(), steps=number(), loss=real(),
        tokens_per_s=real(), own_tokens_per_s=real(), uptime_s=real(), rss_bytes=number(),
        stages=[stage(number(), replica(text(), text(), real(), number())) for _ in range(3)],
        peers=[PeerView(peer=text(), state=text(), rtt_ms=real())],
        seats=[SeatView(stage=number(), version=number(), state=text(), seat=number(),
                        waits_for=text(), for_s=real(), staying=number())],
        network=NetworkView(sent_bytes=number(), received_bytes=number(), links=number()),
        workers=[WorkerView(rss_bytes=number())],
        counters=Counters(rounds_committed=number(), doubled_microbatches=number()),
        limits=LimitsView(memory_bytes=number(), upload_bytes_per_s=number(),
                          daily_bytes=number(), used_bytes=number(), when=[text()] * 9),
        credit=CreditView(microbatches=number(), tokens=number()),
        paused=PauseView(reason=text(), until=real(), since=real()),
        last_error=text(),
        audits=AuditsView(contributions=number(), results=audit_counts()),
        expelled=[ExpelledView(peer=text(), reason=text())],
        trust=[TrustView(peer=text(), standing=draw(st.sampled_from(["proven", "aside"])),
                         words=text(), audits=audit_counts(), fault=text(),
                         invited_by=[text()] * draw(st.integers(0, 3)))],
        matches=examples.matching(
            stage_match(number(), shared_level=real(), redundancy=number(), obstacle=text()),
            paying_moves=[PayingMove(home=number(), to=1)],
        ),
    )  # fmt: skip
    return Update(time=real(), snapshot=now, events=told)


@given(st.lists(updates(), min_size=1, max_size=3), boxes, st.lists(floats, max_size=4))
@settings(deadline=None, max_examples=100)
def test_every_view_survives_and_stays_in_its_box(
    found: list[Update], box: Box, losses: list[float]
) -> None:
    record = Record()
    for one in found:
        record.apply(one)
    record.learn_curve([StepPoint(n, loss, loss, loss) for n, loss in enumerate(losses)])
    for view in PANELS:
        for line in view(record, box):
            assert line_width(line) <= max(box.width, NARROWEST), view
    header(record, Link("live"), box)
    finishing(record, Link("live"))
    tables = [
        stages.stage_table(record, box)[1],
        peers.peer_table(record, box, "")[1],
        logs.log_rows(record, box, "debug", ""),
    ]
    assert all(row.lines is not None for rows in tables for row in rows)
    for peer in peers.peer_rows(found[-1].snapshot):
        peers.details(record, peer.view.peer, box)


def test_all_views_fit_every_width_all_through_the_run() -> None:
    record = Record()
    for number, one in enumerate(recorded()):
        record.apply(one)
        for width in (28, 44, 76, 108, 196) if number % 9 == 0 else ():
            for view in PANELS:
                lines = view(record, Box(width, 9))
                assert len(lines) <= 9, view
                assert all(line_width(line) <= width for line in lines), view


@pytest.mark.parametrize("value", FLOATS)
def test_every_number_has_a_spelling(value: float) -> None:
    for function in (
        spell.count, spell.size, spell.per_s, spell.rate, spell.duration, spell.clock, spell.date,
    ):  # fmt: skip
        assert function(value)
        assert len(function(value)) < 24, function
