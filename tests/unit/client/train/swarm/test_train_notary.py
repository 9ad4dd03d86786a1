"""A volunteer signs what decides a round, and never against itself, over its processes, too."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from client.lab.simulate.electing import sight
from client.store.marks import MarksFile
from client.train.swarm.notary import LEFT_OUT, Notary
from protocol.decree.decree import PROMISE, READY, VOTE, agreed, digest_of, encode_ballot
from protocol.evidence.heard import Heard
from protocol.ids import PeerId
from protocol.membership.contacts import DEAD_AFTER_S
from protocol.wire.messages import Commit, Message, Plan, Propose, Vote
from protocol.wire.parts import Ballot, Decree, PlanMember, Promise
from protocol.wire.statement import Statement, encode_statement
from tests.support.full_disk import full
from tests.support.protocol_examples import SWARM, peer, signer
from tests.support.recording_ports import RecordingPorts
from tests.support.train_swarm import TestSwarm

PLAN = Plan(1, 7, 2, [PlanMember(peer(1), b"\xff")], [0, 8], [], electors=[peer(1)], era=5)
OTHER = replace(PLAN, electors=[peer(2)])


def notary(path: Path | None = None) -> tuple[Notary, Callable[[], list[str]]]:
    """One that keeps its marks in a file, and the warnings that its owner is told."""
    ports = RecordingPorts()
    sees = sight(first=lambda era, step: (peer(1),) if era in (5, 6) and step == 7 else ())
    return Notary(ports, sees, path), ports.warnings


def test_what_is_signed_holds_for_others(tmp_path: Path) -> None:
    made, _ = notary(tmp_path / "marks")
    signed = made.signed(PLAN)
    assert signed is not None
    assert Heard(SWARM).take(peer(1), signed)[1] is None


def test_a_second_body_is_not_sent_and_the_owner_is_told(tmp_path: Path) -> None:
    made, told = notary(tmp_path / "marks")
    first, again = made.signed(PLAN), made.signed(PLAN)
    assert first is not None
    assert again == first
    assert made.signed(OTHER) is None
    assert "step 7, attempt 2" in told()[-1]


def test_the_next_process_does_not_contradict_the_one_before(tmp_path: Path) -> None:
    first, _ = notary(tmp_path / "marks")
    assert first.signed(PLAN) is not None
    second, told = notary(tmp_path / "marks")  # after kill -9: nothing is said at the end
    assert second.promised(1, 5, 7) == (7, 2)
    assert second.signed(OTHER) is None
    assert second.signed(PLAN) is not None
    assert len(told()) == 1


@pytest.mark.parametrize("boots", [("one boot", "the next boot"), ("", "")])
def test_after_a_reboot_what_the_disk_may_lack_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boots: tuple[str, str]
) -> None:
    """A power loss, or a home from a backup: the file may be older than what was signed. So it is
    where the system does not tell boots apart."""
    monkeypatch.setattr("client.train.swarm.notary.this_boot", lambda: boots[0])
    first, _ = notary(tmp_path / "marks")
    first.signed(PLAN)
    monkeypatch.setattr("client.train.swarm.notary.this_boot", lambda: boots[1])
    second, _ = notary(tmp_path / "marks")
    assert second.promised(1, 5, 8) == (8, LEFT_OUT)
    assert second.promised(1, 5, 8) == (7, 2)  # a seat opened again: this process knows its word
    fresh, _ = notary(tmp_path / "other marks")
    assert fresh.promised(1, 5, 8) == (0, 0)  # a new home has signed nothing


def test_damaged_marks_and_a_full_disk_are_told_and_survived(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    path.write_bytes(b"rubbish that is long enough to be read")
    made, told = notary(path)
    assert "going on without" in told()[0]
    assert made.promised(1, 5, 8) == (8, LEFT_OUT)
    assert made.signed(PLAN) is not None
    blocked, told = notary(path := tmp_path / "folder" / "marks")
    path.mkdir(parents=True)
    assert blocked.signed(PLAN) is not None
    assert "cannot be written down" in told()[0]


def test_marks_that_could_not_be_written_are_known_to_be_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full: the next process of the same boot must not go by what is left."""
    first, told = notary(tmp_path / "marks")
    first.signed(PLAN)

    with monkeypatch.context() as patch:
        patch.setattr(MarksFile, "write", full)
        assert first.signed(replace(PLAN, attempt=3)) is not None
    assert "cannot be written down" in told()[0]
    second, told = notary(tmp_path / "marks")
    assert "going on without" in told()[0]
    assert second.promised(1, 5, 8) == (8, LEFT_OUT)


def ready(made: Notary, digest: bytes = b"d", attempt: int = 2) -> bytes:
    """The signature of our readiness for a result of a step."""
    body = encode_statement(Statement(1, 5, 7, attempt, digest * 32))
    return made.elector.sign(READY, body)


def test_who_is_ready_for_one_result_is_for_no_other_of_its_attempt(tmp_path: Path) -> None:
    first, told = notary(tmp_path / "marks")
    said = ready(first)
    assert said
    assert ready(first) == said
    assert not ready(first, b"e")
    assert "step 7, attempt 2" in told()[-1]
    second, _ = notary(tmp_path / "marks")  # after kill -9
    assert not ready(second, b"e")
    assert ready(second, b"e", attempt=3)


LEADER, SECOND = peer(2), peer(3)
QUESTION = Propose(1, 7, 2, era=5)


def decree(digest: bytes = b"d") -> Decree:
    made = Decree(2, digest * 32, (peer(2),), (peer(1),), 0.0)
    body = encode_statement(Statement(1, 5, 7, 2, agreed(made)))
    return replace(made, ready=(signer(2).sign(READY, body, SWARM).signature,))


def promised(made: Notary, leader: PeerId, attempt: int) -> Vote:
    answer = made.elector.answer(leader, Propose(1, 7, attempt, era=5))
    assert isinstance(answer, Vote)
    assert answer.signature
    return answer


def voted(made: Notary) -> Vote:
    """A vote for the decree of the leader's attempt, which the promise of this elector allows."""
    given = promised(made, LEADER, 2)
    promise = Promise(peer(1), 0, b"", given.signature)
    said = Propose(1, 7, 2, decree(), (promise,), era=5)
    answer = made.elector.answer(LEADER, said)
    assert isinstance(answer, Vote)
    assert answer.signature
    return answer


def test_what_the_elector_has_voted_for_outlives_the_process(tmp_path: Path) -> None:
    first, _ = notary(tmp_path / "marks")
    voted(first)
    second, _ = notary(tmp_path / "marks")  # after kill -9
    again = second.elector.answer(SECOND, Propose(1, 7, 2, era=5))
    assert isinstance(again, Vote)
    assert not again.signature, "another leader has the attempt"
    later = promised(second, SECOND, 3)
    assert (later.voted, later.decree) == (2, decree())


def test_a_vote_shows_who_has_voted_and_for_what(tmp_path: Path) -> None:
    made, _ = notary(tmp_path / "marks")
    answer, verify = voted(made), made.elector.verify
    body = encode_ballot(Ballot(1, 5, 7, 2, LEADER, 2, digest_of(decree())))
    assert verify(peer(1), VOTE, body, answer.signature)
    assert not verify(peer(2), VOTE, body, answer.signature)
    assert not verify(peer(1), PROMISE, body, answer.signature)
    assert not verify(peer(1), VOTE, body + b"x", answer.signature)
    assert not verify(peer(1), VOTE, body, b"")
    assert not verify(PeerId("nobody"), VOTE, body, answer.signature)


def test_after_a_reboot_the_elector_stays_out_of_the_lineage_until_a_step_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = notary(tmp_path / "marks")
    voted(first)
    monkeypatch.setattr("client.train.swarm.notary.this_boot", lambda: "the next boot")
    second, _ = notary(tmp_path / "marks")
    second.resume(5)
    assert second.elector.answer(SECOND, Propose(1, 7, 3, era=5)) is None
    asks = Propose(1, 7, 0, era=5)
    assert second.elector.answer(SECOND, Propose(1, 8, 3, era=5)) == asks
    assert isinstance(second.elector.answer(SECOND, Propose(1, 7, 3, era=6)), Vote)
    closed = Commit(1, 8, 2, LEADER, decree(), ((peer(1), bytes(64)),), era=5)
    second.elector.take(closed, checked=True)
    assert isinstance(second.elector.answer(SECOND, Propose(1, 9, 3, era=5)), Vote)


def test_an_elector_whose_file_is_damaged_stays_out_too(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    path.write_bytes(b"rubbish that is long enough to be read")
    made, _ = notary(path)
    made.resume(5)
    assert made.elector.answer(SECOND, QUESTION) is None
    other, _ = notary(tmp_path / "a new home")
    other.resume(5)
    assert isinstance(other.elector.answer(SECOND, QUESTION), Vote)


async def test_a_leader_that_tells_its_members_two_things_is_out(swarm: TestSwarm) -> None:
    """Three replicas of one stage: the leader tells the other two something else each."""
    *replicas, _ = await swarm.staffed(1, 1, 1, 0, steps=2)
    liar, *honest = replicas
    me, other = liar.peer, honest[1].peer
    truth = liar.engine.notary.signed
    lies = Notary(liar.engine, sight(), None)
    send = liar.engine.send

    def two_faced(to: PeerId, message: Message, payload: bytes = b"") -> None:
        if not isinstance(message, Plan) or to != other:
            send(to, message, payload)
            return
        first, *others = message.electors
        false = lies.signed(replace(message, electors=[*others, first]))
        if false is not None:
            liar.engine.network.post(to, false)

    liar.engine.send = two_faced  # type: ignore[method-assign]
    await swarm.until(lambda: all(me in one.engine.membership.verdicts for one in honest))
    assert liar.engine.notary.signed == truth
    newest = max(one.step(1) for one in honest)
    with trio.fail_after(DEAD_AFTER_S - 1):  # no round waits until its silence is noticed
        await swarm.until(lambda: all(one.step(1) > newest + 2 for one in honest))
    assert all(len(one.engine.membership.verdicts) == 1 for one in honest)
    assert all(one.engine.internal_errors == 0 for one in honest)
