"""``volunteer amend``: by the founder, running or not, and nobody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from client.cli.commands.create import keep_swarm, sign
from client.cli.founding.amending import described
from client.cli.reach.home import find_home
from client.control.amended import ONLY_THE_FOUNDER, amended, amendment_views
from client.control.methods import Impossible
from client.control.snapshot import Amended
from client.errors import ExitCode
from client.store.persisted import Persisted
from client.store.swarms import SwarmStore
from protocol.amendments.amendment import sign_amendment
from protocol.amendments.book import Amendments, KeptAmendments
from protocol.amendments.changes import Changes
from protocol.amendments.draft import draft
from protocol.errors import LocalProtocolError
from protocol.invite import SwarmFile
from protocol.wire.envelope import Signer
from tests.support.cli_process import Within
from tests.support.control_fakes import FakeProvider
from tests.support.nodes import node_of
from tests.support.protocol_examples import manifest


def known(founder: Signer) -> SwarmFile:
    """A swarm of a hundred steps that this home knows, with its founder."""
    swarm = sign(manifest(founder.peer), founder, ())
    keep_swarm(swarm, SwarmStore(find_home().folders.swarms))
    return swarm


@pytest.fixture
def own(home: Path) -> SwarmFile:
    return known(find_home().signer())


def kept(swarm: SwarmFile) -> Amendments:
    path = find_home().folders.amendments(swarm.swarm)
    return Amendments(swarm.manifest, swarm.swarm, Persisted(path, KeptAmendments).peek())


class TestOffline:
    def test_it_is_kept_for_the_next_start(self, own: SwarmFile, within: Within) -> None:
        done = within("amend", "--steps", "400", "--yes")
        assert done.returncode == 0
        assert "the run is extended from 100 to 400 steps" in done.stderr
        assert "the learning rate stays as it was" in done.stderr
        assert "when this volunteer joins again" in done.stderr
        assert kept(own).steps == 400

    def test_one_after_the_other(self, own: SwarmFile, within: Within) -> None:
        assert within("amend", "--steps", "400", "--yes").returncode == 0
        words = ("--learning-rate", "5e-4", "--schedule", "constant", "--from-step", "200")
        answer = json.loads(within("amend", *words, "--yes", "--json").stdout)
        assert answer["amendment"]["number"] == 2
        assert answer["earliest"] == 200
        assert answer["told"] is False
        assert answer["amendment"]["from_step"] is None
        rates = {step: (before, after) for step, before, after in answer["rates"]}
        assert rates[399][1] == 5e-4
        assert [one.amendment.number for one in kept(own).chain()] == [1, 2]
        again = within("amend", "--lr", "5e-4", "--yes")
        assert again.returncode == ExitCode.USAGE
        assert "nothing would change" in again.stderr

    def test_without_a_person_it_wants_to_be_told_yes(
        self, own: SwarmFile, within: Within, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
        done = within("amend", "--steps", "400")
        assert done.returncode == ExitCode.USAGE
        assert "pass --yes" in done.stderr
        assert kept(own).chain() == ()

    @pytest.mark.parametrize(("said", "signed"), [(True, True), (False, False)])
    def test_it_asks_once(
        self,
        own: SwarmFile,
        within: Within,
        monkeypatch: pytest.MonkeyPatch,
        said: bool,
        signed: bool,
    ) -> None:
        asked: list[str] = []

        def answers(question: str, *, yes: bool) -> bool:
            asked.append(question)
            return said

        monkeypatch.setattr("client.cli.founding.amending.confirmed", answers)
        assert within("amend", "--steps", "400").returncode == 0
        assert len(asked) == 1
        assert bool(kept(own).chain()) is signed

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("amend", "--steps", "100"), "nothing would change"),
            (("amend", "--learning-rate", "5"), "would destroy it"),
            (("amend", "--learning-rate", "nan"), "0 < lr <= 10"),
            (("amend", "--learning-rate", "1e-4", "--from-step", "100"), "nothing is left"),
            (("amend",), "nothing would change"),
            (("amend", "--decay-from", "50"), "decay_from belongs"),
        ],
    )
    def test_what_cannot_be_is_said(
        self, own: SwarmFile, within: Within, arguments: tuple[str, ...], words: str
    ) -> None:
        done = within(*arguments, "--yes")
        assert done.returncode == ExitCode.USAGE
        assert words in done.stderr
        assert kept(own).chain() == ()

    def test_whoever_is_not_the_founder_is_refused(self, home: Path, within: Within) -> None:
        find_home().signer()
        swarm = known(Signer(b"\x05" * 32))
        done = within("amend", "--steps", "400", "--yes")
        assert done.returncode == ExitCode.REFUSED
        assert f"only the founder of this swarm, {swarm.manifest.founder}" in done.stderr
        assert "ask the founder" in done.stderr

    def test_no_such_run(self, home: Path, within: Within) -> None:
        done = within("amend", "--steps", "400", "--swarm", "nowhere", "--yes")
        assert done.returncode == ExitCode.NOT_RUNNING
        assert "no swarm 'nowhere' is known" in done.stderr

    def test_after_two_amendments_of_one_number_nothing_can_be_changed(
        self, own: SwarmFile, within: Within
    ) -> None:
        assert within("amend", "--steps", "400", "--yes").returncode == 0
        path = find_home().folders.amendments(own.swarm)
        path.rename(path.with_suffix(".old"))  # as on a machine that does not know of it
        assert within("amend", "--steps", "500", "--yes").returncode == 0
        book = kept(own)
        old = Persisted(path.with_suffix(".old"), KeptAmendments).read()
        assert old is not None
        for envelope in old.amendments:
            book.take(envelope)
        Persisted(path, KeptAmendments).save(book.kept)
        done = within("amend", "--steps", "600", "--yes")
        assert done.returncode == ExitCode.USAGE
        assert "two different amendments 1" in done.stderr


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


class TestRunning:
    def test_the_volunteer_signs_and_tells(self, home: Path, within: Within) -> None:
        node = Founders()
        with node_of(home, node):
            done = within("amend", "--learning-rate", "2e-3", "--steps", "300", "--yes")
        assert done.returncode == 0
        assert "step 40 is done; the run is extended from 100 to 300 steps" in done.stderr
        assert "from step 46 on" in done.stderr  # 2 stages: six steps later at the earliest
        assert "members are told now" in done.stderr
        assert node.book.steps == 300

    def test_what_it_refuses_is_shown(self, home: Path, within: Within) -> None:
        with node_of(home, Founders()):
            done = within("amend", "--steps", "40", "--yes")
        assert done.returncode == ExitCode.RUNTIME
        assert "the run has done 40 steps" in done.stderr

    def test_only_the_founders(self, home: Path, within: Within) -> None:
        with node_of(home, FakeProvider()):
            done = within("amend", "--steps", "40", "--yes")
        assert done.returncode == ExitCode.REFUSED
        assert done.stderr.startswith("volunteer: only the founder of this swarm")


def test_views_say_what_is_agreed(own: SwarmFile) -> None:
    book, signer = kept(own), find_home().signer()
    said = draft(book, 1e-3, Changes(steps=400), 0)
    book.take(sign_amendment(signer, said, own.swarm))
    [pending] = amendment_views(book)
    assert (pending.from_step, pending.steps) == (None, 400)
    book.settle(book.propose((), 10))
    [agreed] = amendment_views(book)
    assert agreed.from_step == 16


def test_rates_are_shown_where_they_differ(own: SwarmFile) -> None:
    book = kept(own)
    show: Callable[[Changes], list[str]] = lambda changes: list(  # noqa: E731
        described(amended(book, draft(book, 1e-3, changes, 0), 0, signed=False))
    )
    assert len(show(Changes(steps=400))) == 2
    table = show(Changes(lr=5e-4))
    assert "as it will be" in table[2]
    assert len(table) > 5
    assert ONLY_THE_FOUNDER.format("x").endswith("can change its run")
