"""The register: admission by an invite, and the effects of an expulsion."""

import pytest
from msgspec.structs import replace

from protocol import limits
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import PeerId
from protocol.vouching.register import MAX_EXPULSIONS, Expelled, KeptRegister, Register
from protocol.vouching.ticket import TICKET_LIFE_S
from protocol.wire.canonical import Canonical
from protocol.wire.fields import Envelope
from protocol.wire.parts import Expulsion
from tests.support.protocol_examples import OTHER_SWARM, SWARM, peer, signer

FOUNDER = 1
NOW = 1_800_000_000.0


def register(number: int, kept: KeptRegister | None = None) -> Register:
    return Register(signer(number), peer(FOUNDER), SWARM, kept)


def invite(by: Register, number: int, uses: int = 1) -> Register:
    """Somebody redeems an invite; return the newcomer's register."""
    ticket = by.draw_ticket(number.to_bytes(32, "big"), uses, NOW)
    newcomer = register(number)
    shown = newcomer.proof(by.me, ticket.secret)
    answer, chain = by.admit(newcomer.me, shown, NOW)
    assert answer, answer.reason
    assert newcomer.take_chain(chain)
    return newcomer


def meet(one: Register, other: Register) -> bool:
    """Two members say Hello; whether the first admits the second."""
    return bool(one.admit(other.me, other.proof(one.me, None), NOW)[0])


class TestInvites:
    def test_whoever_redeems_one_is_a_member_everywhere(self) -> None:
        founder = register(FOUNDER)
        friend = invite(founder, 2)
        guest = invite(friend, 3)
        stranger = register(4)
        assert meet(founder, guest)
        assert meet(guest, founder)
        assert meet(guest, friend)
        assert founder.path(guest.me) == (friend.me, guest.me)
        assert guest.is_member
        assert not stranger.is_member
        with pytest.raises(RemoteProtocolError, match="another member"):
            founder.admit(stranger.me, stranger.proof(founder.me, None), NOW)

    def test_it_is_good_for_as_many_as_it_says(self) -> None:
        founder = register(FOUNDER)
        secret = bytes(32)
        founder.draw_ticket(secret, 1, NOW)
        first = founder.admit(peer(2), register(2).proof(founder.me, secret), NOW)
        again = founder.admit(peer(2), register(2).proof(founder.me, secret), NOW)
        other, chain = founder.admit(peer(3), register(3).proof(founder.me, secret), NOW)
        assert first[0]
        assert again == first, "who came in may ask again: the answer may be lost"
        assert not other
        assert not chain
        assert "used already" in other.reason

    @pytest.mark.parametrize("life_s", [60.0, TICKET_LIFE_S])
    def test_it_expires(self, life_s: float) -> None:
        founder = register(FOUNDER)
        secret, late = bytes(32), NOW + life_s
        founder.draw_ticket(secret, 8, NOW, life_s)
        shown = register(2).proof(founder.me, secret)
        assert "expired" in founder.admit(peer(2), shown, late)[0].reason

    def test_what_is_overheard_lets_nobody_else_in(self) -> None:
        founder = register(FOUNDER)
        founder.draw_ticket(bytes(32), 8, NOW)
        shown = register(2).proof(founder.me, bytes(32))
        assert not founder.admit(peer(3), shown, NOW)[0], "it names its bearer"
        elsewhere = register(3).proof(peer(4), bytes(32))
        refusal = founder.admit(peer(3), elsewhere, NOW)[0]
        assert "shown to the member that made it" in refusal.reason, "it was meant for another"

    @pytest.mark.parametrize("shown", [b"", b"\xc1", b"\x92\xa5chain\x90x", bytes(4096)])
    def test_what_is_no_proof_costs_points(self, shown: bytes) -> None:
        with pytest.raises(RemoteProtocolError) as caught:
            register(FOUNDER).admit(peer(2), shown, NOW)
        assert caught.value.penalty >= 20

    def test_nobody_invites_who_is_no_member_or_too_far_from_the_founder(self) -> None:
        with pytest.raises(LocalProtocolError, match="nobody has vouched for you"):
            register(2).draw_ticket(bytes(32), 1, NOW)
        last = register(FOUNDER)
        for number in range(2, 2 + limits.MAX_CHAIN):
            last = invite(last, number)
        with pytest.raises(LocalProtocolError, match="the most"):
            last.draw_ticket(bytes(32), 1, NOW)

    def test_a_program_that_looks_on_is_vouched_for_by_its_volunteer(self) -> None:
        founder = register(FOUNDER)
        friend = invite(founder, 2)
        looking = register(9, KeptRegister(friend.lend(peer(9), NOW)))
        assert meet(founder, looking)
        with pytest.raises(LocalProtocolError, match="only a member"):
            register(3).lend(peer(9), NOW)


class TestExpulsions:
    def test_a_bad_branch_is_cut_and_only_that(self) -> None:
        founder = register(FOUNDER)
        bad, good = invite(founder, 2), invite(founder, 3)
        below = invite(bad, 4)
        assert all(meet(founder, one) for one in (bad, good, below))
        expulsion = founder.expel(bad.me, "sends noise", NOW)
        for one in (good, bad, below):
            assert one.take_expulsion(expulsion)
            assert not one.take_expulsion(expulsion), "once is enough"
        assert not meet(good, bad)
        assert not meet(good, below)
        assert meet(good, founder)
        assert meet(founder, good)
        assert "you were expelled by" in bad.standing(bad.me).reason
        assert "sends noise" in bad.standing(bad.me).reason
        assert "who invited you was expelled" in below.standing(below.me).reason
        assert good.standing(good.me)

    def test_who_is_out_lets_nobody_in(self) -> None:
        founder = register(FOUNDER)
        bad = invite(founder, 2)
        bad.draw_ticket(bytes(32), 8, NOW)
        bad.take_expulsion(founder.expel(bad.me, "", NOW))
        shown = register(5).proof(bad.me, bytes(32))
        answer, chain = bad.admit(peer(5), shown, NOW)
        assert not answer
        assert not chain
        with pytest.raises(LocalProtocolError, match="expelled by"):
            bad.draw_ticket(bytes(32), 1, NOW)

    def test_a_member_expels_whom_it_has_invited_and_nobody_else(self) -> None:
        founder = register(FOUNDER)
        friend, other = invite(founder, 2), invite(founder, 3)
        guest = invite(friend, 4)
        assert meet(friend, guest)
        assert meet(friend, other)
        assert meet(friend, founder)
        assert founder.take_expulsion(friend.expel(guest.me, "", NOW))
        assert not meet(founder, guest)
        with pytest.raises(LocalProtocolError, match="only who vouched"):
            friend.expel(other.me, "", NOW)
        with pytest.raises(LocalProtocolError, match="nobody can expel the founder"):
            friend.expel(founder.me, "", NOW)
        with pytest.raises(LocalProtocolError, match="nobody expels themselves"):
            friend.expel(friend.me, "", NOW)
        with pytest.raises(LocalProtocolError, match="has been met"):
            friend.expel(peer(77), "", NOW)

    @pytest.mark.parametrize("author", [3, 4, 9])
    def test_a_forged_one_is_refused(self, author: int) -> None:
        """By a sibling, by the member itself, by a stranger: each with the member's real chain."""
        founder = register(FOUNDER)
        victim = invite(founder, 4)
        invite(founder, 3)
        said = Canonical(Expelled, "expulsion").encode(Expelled(victim.me, "", int(NOW)))
        forged = Expulsion(signer(author).sign("expel", said, SWARM), list(victim.chain))
        with pytest.raises(RemoteProtocolError) as caught:
            founder.take_expulsion(forged)
        assert caught.value.penalty >= 50
        assert meet(founder, victim)

    def test_one_of_another_run_or_with_other_words_is_refused(self) -> None:
        founder = register(FOUNDER)
        victim, other = invite(founder, 2), invite(founder, 3)
        whole = Register(signer(FOUNDER), peer(FOUNDER), SWARM, founder.kept)
        meet(whole, victim)
        real = whole.expel(victim.me, "", NOW)
        elsewhere = signer(FOUNDER).sign("expel", real.statement.body, OTHER_SWARM)
        broken: list[tuple[Envelope, list[Envelope]]] = [
            (elsewhere, real.chain),
            (real.statement, list(other.chain)),
            (real.statement, []),
            (replace(real.statement, body=real.statement.body[:-1]), real.chain),
            (replace(real.statement, kind="vouch"), real.chain),
            (signer(FOUNDER).sign("vouch", real.statement.body, SWARM), real.chain),
        ]
        for statement, chain in broken:
            with pytest.raises(RemoteProtocolError):
                founder.take_expulsion(Expulsion(statement, chain))
        assert not founder.expulsions

    def test_it_outlasts_its_author_and_a_restart(self) -> None:
        founder = register(FOUNDER)
        bad, good = invite(founder, 2), invite(founder, 3)
        good.take_expulsion(founder.expel(bad.me, "", NOW))
        back = register(3, good.kept)
        assert not meet(back, bad)
        late = invite(back, 5)
        for known in back.expulsions:
            late.take_expulsion(known)
        assert not meet(late, bad)

    def test_a_member_that_expels_its_own_crowds_out_nobody_above_or_beside_it(self) -> None:
        """It signs that it did so long ago, and has some of them done by those it has invited."""
        founder, judge = register(FOUNDER), register(9)
        bad, good = invite(founder, 2), invite(founder, 3)
        below = invite(good, 4)
        real = [
            founder.expel(invite(founder, 7).me, "", NOW),
            good.expel(invite(good, 5).me, "", NOW),
            below.expel(invite(below, 6).me, "", NOW),
        ]
        crowd = [bad, *(invite(bad, number) for number in range(50, 55))]
        for number in range(100, 100 + MAX_EXPULSIONS):
            by = crowd[number % len(crowd)]
            judge.take_expulsion(by.expel(invite(by, number).me, "", 0.0))
        assert all(map(judge.take_expulsion, real))
        assert len(judge.expulsions) == MAX_EXPULSIONS
        assert all(one in judge.expulsions for one in real)


class TestKept:
    def test_what_does_not_hold_is_left_out(self) -> None:
        founder = register(FOUNDER)
        friend, other = invite(founder, 2), invite(founder, 3)
        assert not register(2, KeptRegister(other.chain)).is_member
        broken = Expulsion(friend.chain[0], list(friend.chain))
        assert register(2, KeptRegister(friend.chain, (broken,))).kept == friend.kept

    def test_tickets_survive(self) -> None:
        founder = register(FOUNDER)
        founder.draw_ticket(bytes(32), 1, NOW)
        back = register(FOUNDER, founder.kept)
        shown = register(2).proof(back.me, bytes(32))
        assert back.admit(PeerId(peer(2)), shown, NOW)[0]
