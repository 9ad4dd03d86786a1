"""``volunteer amend``: by the founder's volunteer, and nobody else."""

import io
import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from client.cli.commands.create import sign
from client.control.amended import amended, amendment_views
from client.control.methods import Impossible
from client.control.snapshot import Amended
from client.errors import ExitCode
from protocol.amendments.amendment import sign_amendment
from protocol.amendments.book import Amendments
from protocol.amendments.changes import Changes
from protocol.amendments.draft import draft
from protocol.errors import LocalProtocolError
from protocol.wire.envelope import Signer
from tests.support.cli_process import Terminal, Within
from tests.support.control_fakes import FakeProvider
from tests.support.nodes import node_of
from tests.support.protocol_examples import manifest


class Founders(FakeProvider):
    """A node of a swarm of a hundred steps that its owner has founded, at step 40."""

    def __init__(self) -> None:
        super().__init__()
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


def test_rates_are_shown_all_along_what_is_left() -> None:
    found = Founders().amend(Changes(steps=300), sign=False)
    steps = [step for step, *_ in found.rates]
    assert steps[0] == 40
    assert steps[-1] == 299
    assert {found.earliest, 99} < set(steps)
    assert max(b - a for a, b in pairwise(steps)) <= (299 - 40) / 4


class TestRunning:
    def test_the_volunteer_signs_and_tells(self, home: Path, within: Within) -> None:
        node = Founders()
        with node_of(home, node):
            done = within.ends(0, "amend", "--learning-rate", "2e-3", "--steps", "300", "--yes")
        assert "step 40 is done; the run is extended from 100 to 300 steps" in done.stderr
        assert "from step 46 on:\n" in done.stderr  # 2 stages: six steps later
        assert "members are told now" in done.stdout
        assert node.book.steps == 300

    def test_a_program_is_answered_in_json(self, home: Path, within: Within) -> None:
        words = ("--learning-rate", "5e-4", "--schedule", "constant", "--from-step", "80")
        with node_of(home, Founders()):
            answer = json.loads(within("amend", *words, "--yes", "--json").stdout)
        assert (answer["amendment"]["number"], answer["signed"]) == (1, True)
        assert answer["earliest"] == 80
        assert answer["rates"][-1][2] == pytest.approx(5e-4, rel=0.02)

    @pytest.mark.parametrize(
        ("stdin", "code"),
        [
            (io.StringIO(), ExitCode.USAGE),
            (Terminal("n\n"), ExitCode.INTERRUPTED),
            (Terminal("y\n"), ExitCode.OK),
        ],
    )
    def test_it_asks_a_person_or_wants_to_be_told_yes(
        self,
        home: Path,
        within: Within,
        monkeypatch: pytest.MonkeyPatch,
        stdin: io.StringIO,
        code: ExitCode,
    ) -> None:
        monkeypatch.setattr(sys, "stdin", stdin)
        node = Founders()
        with node_of(home, node):
            done = within.ends(code, "amend", "--steps", "400")
        assert ("pass --yes" in done.stderr) is (code is ExitCode.USAGE)
        assert bool(node.book.counting) is (code is ExitCode.OK)

    def test_what_it_refuses_is_shown(self, home: Path, within: Within) -> None:
        with node_of(home, Founders()):
            done = within.ends(ExitCode.RUNTIME, "amend", "--steps", "40", "--yes")
        assert "the run has done 40 steps" in done.stderr

    def test_only_the_founders(self, home: Path, within: Within) -> None:
        with node_of(home, FakeProvider()):
            done = within.ends(ExitCode.REFUSED, "amend", "--steps", "40", "--yes")
        assert done.stderr.startswith("volunteer: only the founder of this swarm")


def test_views_say_from_which_step_on_it_holds() -> None:
    node = Founders()
    node.amend(Changes(lr=5e-4), sign=True)
    [view] = amendment_views(node.book)
    assert view.from_step == 46
