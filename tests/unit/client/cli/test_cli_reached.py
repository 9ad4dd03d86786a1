"""Whether others reach this volunteer: the words of ``status``, ``doctor`` and the screen."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from client.cli.diagnosis import checks_outside
from client.cli.reach.home import find_home
from client.control.snapshot import ReachView, Snapshot
from client.views.dashboard import network
from client.views.record import Record
from client.views.report import status_report
from client.views.span import Box
from tests.support.control_fakes import FakeProvider, example_snapshot
from tests.support.nodes import node_of

SHUT = ReachView(state="unreachable", words="not reachable: nobody could", next_step="forward it")
OPEN = ReachView(state="mapped", words="reachable by the router", next_step="")


def with_reach(reach: ReachView) -> Snapshot:
    return structs.replace(example_snapshot(), reach=reach)


def test_status_says_whether_others_reach_us_and_what_would_help() -> None:
    assert "reached" not in status_report(example_snapshot())
    report = status_report(with_reach(SHUT)).splitlines()
    at = report.index("reached   not reachable: nobody could")
    assert report[at + 1] == "          forward it"
    assert "reached   reachable by the router" in status_report(with_reach(OPEN)).splitlines()


def test_a_change_of_the_network_is_told() -> None:
    words = "the network changed (another router); linked again with 3 of 3 after 2.0 s"
    changed = with_reach(structs.replace(OPEN, change=words))
    assert f"changed   {words}" in status_report(changed).splitlines()
    record = Record()
    record.snapshot = changed
    told = ["".join(span.text for span in line) for line in network(record, Box(120, 20))]
    assert any("changed" in line and "linked again with 3 of 3" in line for line in told)


class Reached(FakeProvider):
    def __init__(self, reach: ReachView) -> None:
        super().__init__()
        self.reach = reach

    def status(self) -> Snapshot:
        return structs.replace(super().status(), reach=self.reach)


@pytest.mark.parametrize(("reach", "status"), [(SHUT, "warn"), (OPEN, "ok")])
def test_doctor_asks_the_volunteer_that_runs(home: Path, reach: ReachView, status: str) -> None:
    with node_of(home, Reached(reach)):
        found = {check.name: check for check in checks_outside.check_node(find_home())}
    check = found["reached"]
    assert (check.status, check.words, check.next_step) == (status, reach.words, reach.next_step)
