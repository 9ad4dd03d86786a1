"""A convicted member is expelled; proofs spread to every link once, within bounds."""

import pytest

from protocol import verdicts
from protocol.effects import Effect, Explain, Send
from protocol.errors import RemoteProtocolError
from protocol.evidence.proofs import OF_LINK, OF_STRANGERS, Proofs
from protocol.ids import PeerId
from protocol.verdicts import MAX_CERTIFICATES, Verdict, Verdicts
from protocol.wire.messages import Statements
from tests.support.protocol_examples import OTHER_SWARM, SWARM, peer, proof_of

ME, ALICE, BORIS = peer(0), peer(1), peer(2)
"""Those with links; liars have higher numbers."""
NOW = 100.0


def linked(*peers: PeerId) -> Proofs:
    return Proofs(ME, SWARM, Verdicts(), lambda: peers)


def told(effects: list[Effect | Verdict] | list[Effect]) -> list[PeerId]:
    return [e.peer for e in effects if isinstance(e, Send) and isinstance(e.message, Statements)]


def test_a_proof_expels_and_is_passed_on_once() -> None:
    machine = linked(ALICE, BORIS, peer(9))
    effects = machine.receive(ALICE, proof_of(9), NOW, member=True)
    assert [e.culprit for e in effects if isinstance(e, Verdict)] == [peer(9)]
    assert told(effects) == [BORIS]  # not its bringer, not whom it convicts
    assert peer(9) in machine._verdicts
    assert ALICE not in machine._verdicts
    assert machine.receive(BORIS, proof_of(9), NOW, member=True) == []


def test_a_new_link_is_told_who_is_out() -> None:
    machine = linked(ALICE)
    assert told(machine.found(proof_of(9), member=True)) == [ALICE], "as is each link that there is"
    assert machine.link_up(BORIS) == [Send(BORIS, Statements("proof", proof_of(9).envelopes))]


def test_who_relays_what_proves_nothing_is_to_blame() -> None:
    machine = linked(ALICE)
    with pytest.raises(RemoteProtocolError) as caught:
        machine.receive(ALICE, proof_of(9, OTHER_SWARM), NOW, member=True)
    assert caught.value.penalty == 50
    assert peer(9) not in machine._verdicts


def test_evidence_about_ourselves_is_told_to_the_owner_and_to_nobody_else() -> None:
    """A home that was copied to a second machine signs with our key, too."""
    machine = linked(ALICE, BORIS)
    effects = machine.receive(ALICE, proof_of(0), NOW, member=True)
    assert [type(e) for e in effects] == [Explain]
    assert ME not in machine._verdicts
    assert machine.receive(BORIS, proof_of(0), NOW, member=True) == []  # said once


def test_a_link_brings_so_many_proofs_at_once() -> None:
    machine = linked(ALICE, BORIS)
    for number in range(10, 10 + int(OF_LINK.burst) + 5):
        machine.receive(ALICE, proof_of(number), NOW, member=False)
    assert len(machine._verdicts) == OF_LINK.burst
    last = proof_of(500)
    later = NOW + 1 / OF_LINK.per_s
    assert machine.receive(ALICE, last, later - 0.1, member=True) == []
    assert machine.receive(BORIS, last, NOW, member=True)  # the others have their own allowance
    assert machine.receive(ALICE, proof_of(501), later, member=True)


def test_all_links_together_bring_so_many_proofs_about_strangers() -> None:
    """Each is sent on to every link."""
    links = [peer(number) for number in range(1, 11)]
    machine = linked(*links)
    for number in range(100, 100 + 10 * int(OF_LINK.burst)):
        machine.receive(links[number % 10], proof_of(number), NOW, member=False)
    assert len(machine._verdicts) == OF_STRANGERS.burst
    later = NOW + 2 / OF_STRANGERS.per_s
    for number in range(400, 405):
        machine.receive(links[number % 10], proof_of(number), later, member=False)
    assert len(machine._verdicts) == OF_STRANGERS.burst + 2
    machine = linked(*links)
    for number in range(100, 100 + 8 * int(OF_LINK.burst)):
        machine.receive(links[number % 10], proof_of(number), NOW, member=False)
    assert machine.receive(links[0], proof_of(500), NOW, member=True)  # one that works beside us


def test_proofs_of_invented_identities_give_way_to_those_of_members() -> None:
    machine = linked(ALICE)
    machine.found(proof_of(9), member=True)
    for number in range(10, 10 + MAX_CERTIFICATES):
        machine.found(proof_of(number), member=False)
    assert len(machine._verdicts.proofs) == MAX_CERTIFICATES
    assert proof_of(9) in machine._verdicts.proofs
    machine.found(proof_of(200), member=True)
    assert {proof_of(9), proof_of(200)} <= set(machine._verdicts.proofs)
    assert len(machine._verdicts.proofs) == MAX_CERTIFICATES
    assert peer(10) in machine._verdicts  # it stays out, though nobody is told of it any more


def test_who_has_worked_is_out_however_many_invented_identities_convict_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verdicts, "MAX_VERDICTS", 3)
    known = Verdicts()
    known.add(Verdict(peer(9), "it lies", None))
    for number in range(10, 20):
        known.add(Verdict(peer(number), "it lies", None, member=False))
    assert [one.culprit for one in known] == [peer(9), peer(18), peer(19)]
    known.add(Verdict(peer(8), "it lies", None))
    known.add(Verdict(peer(7), "it lies", None))
    known.add(Verdict(peer(6), "it lies", None))
    assert [one.culprit for one in known] == [peer(8), peer(7), peer(6)], "the oldest goes"
