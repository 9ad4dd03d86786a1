"""Keys that are replaced: who stays, who is out, and what a thief of the old key can do."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from protocol import limits
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import PeerId, SwarmId
from protocol.vouching.chain import (
    ROTATE,
    Chain,
    Rotated,
    Succession,
    follow,
    members_of,
    rotate,
    vouch,
)
from protocol.vouching.register import Kept, Register
from protocol.vouching.rotations import MAX_KNOWN
from protocol.wire.canonical import Canonical
from protocol.wire.fields import Envelope
from protocol.wire.messages import ExpulsionList, RotationList, encode_message
from protocol.wire.parts import Expulsion
from tests.support.protocol_examples import OTHER_SWARM, SWARM, peer, signer

FOUNDER, FRIEND, GUEST, NEW, THIEF = 1, 2, 3, 12, 13
NOW = 1_800_000_000.0


def register(number: int, kept: Kept | None = None) -> Register:
    return Register(signer(number), peer(FOUNDER), SWARM, kept)


def invite(by: Register, number: int) -> Register:
    """Somebody redeems an invite; return the newcomer's register."""
    ticket = by.draw_ticket(number.to_bytes(32, "big"), 1, NOW)
    newcomer = register(number)
    answer, chain = by.admit(newcomer.me, newcomer.proof(by.me, ticket.secret), NOW)
    assert answer, answer.reason
    assert newcomer.take_chain(chain, ticket.secret)
    return newcomer


def meet(one: Register, other: Register) -> bool:
    """Two members say Hello; whether the first admits the second."""
    return bool(one.admit(other.me, other.proof(one.me, None), NOW)[0])


def belongs(one: Register) -> bool:
    return one.belongs


def rotated(of: Register, new: int) -> Register:
    """Return the register of the new key of a member."""
    return register(new, of.hand_over(signer(new), NOW))


@pytest.fixture
def founder() -> Register:
    return register(FOUNDER)


@pytest.fixture
def friend(founder: Register) -> Register:
    return invite(founder, FRIEND)


@pytest.fixture
def guest(friend: Register) -> Register:
    return invite(friend, GUEST)


class TestTheNewKey:
    def test_it_takes_the_place_and_the_old_one_is_out_everywhere(
        self, founder: Register, friend: Register, guest: Register
    ) -> None:
        assert meet(founder, friend)
        new = rotated(friend, NEW)
        assert new.belongs
        assert meet(founder, new), "its chain says all, without anything told before"
        assert not meet(founder, friend)
        assert "was replaced by" in founder.standing(friend.me).reason
        assert guest.take_rotation(new.chain), "told as expulsions are"
        assert not guest.take_rotation(new.chain), "once is enough"
        assert not meet(guest, friend)
        assert meet(guest, new)

    def test_the_old_volunteer_learns_that_it_is_out(self, friend: Register) -> None:
        new = rotated(friend, NEW)
        assert belongs(friend), "it has only signed"
        assert friend.take_rotation(new.chain)
        assert not belongs(friend)
        assert "replaced" in friend.own_answer().reason

    def test_whom_it_vouched_for_stays(
        self, founder: Register, friend: Register, guest: Register
    ) -> None:
        below = invite(guest, 4)
        new = rotated(friend, NEW)
        assert meet(founder, new)
        assert meet(founder, guest)
        assert meet(founder, below)
        assert guest.take_rotation(new.chain)
        assert guest.belongs

    def test_it_invites_and_expels_as_the_old_one_did(
        self, founder: Register, friend: Register, guest: Register
    ) -> None:
        below = invite(guest, 4)
        new = rotated(friend, NEW)
        other = invite(new, 5)
        for one in (guest, below):
            assert meet(new, one)
            assert new.may_expel(one.me)
        assert meet(founder, other)
        assert founder.take_expulsion(new.expel(below.me, "noise", NOW)), "nobody has told it more"
        assert not meet(founder, below)
        assert meet(founder, guest)
        assert founder.take_expulsion(new.expel(guest.me, "noise", NOW))
        assert not meet(founder, guest)
        assert "expelled by" in founder.standing(guest.me).reason

    def test_whom_the_old_one_expelled_stays_out(self, founder: Register, friend: Register) -> None:
        bad = invite(friend, 4)
        expulsion = friend.expel(bad.me, "noise", NOW)
        new = rotated(friend, NEW)
        for told in ((new.chain, expulsion), (expulsion, new.chain)):
            judge = register(9)
            for one in told:
                judge.take_expulsion(one) if isinstance(one, Expulsion) else judge.take_rotation(
                    one
                )
            assert not meet(judge, bad)
            assert "noise" in judge.standing(bad.me).reason
        assert new.kept.expulsions == (expulsion,)

    @pytest.mark.parametrize("which", ["old", "new"])
    def test_the_inviter_can_still_take_it_all_back(self, which: str) -> None:
        founder = register(FOUNDER)
        inviter = invite(founder, 5)
        friend = invite(inviter, FRIEND)
        guest = invite(friend, GUEST)
        assert meet(inviter, friend)
        new = rotated(friend, NEW)
        if which == "new":
            assert meet(inviter, new)
        out = inviter.expel(new.me if which == "new" else friend.me, "noise", NOW)
        judge = register(9)
        assert judge.take_expulsion(out)
        for one in (friend, new, guest):
            assert not meet(judge, one)
        assert meet(judge, inviter)

    def test_its_own_state_is_whole_after_a_restart(
        self, founder: Register, friend: Register
    ) -> None:
        again = register(NEW, rotated(friend, NEW).kept)
        assert again.belongs
        assert again.rotations == (again.chain,)
        assert not again.tickets, "whoever has an invite of the old key has nothing"
        assert meet(founder, again)
        back = register(FOUNDER, founder.kept)
        assert not meet(back, friend), "kept on disk"

    def test_it_can_be_replaced_again(
        self, founder: Register, friend: Register, guest: Register
    ) -> None:
        new = rotated(friend, NEW)
        second = invite(new, 4)
        newest = rotated(new, 14)
        assert meet(founder, newest)
        for one in (friend, new):
            assert not meet(founder, one)
        for one in (guest, second):
            assert meet(founder, one)
        assert meet(newest, guest)
        assert newest.may_expel(guest.me)


class TestWhoCannot:
    def test_the_founder(self, founder: Register) -> None:
        with pytest.raises(LocalProtocolError, match="in the manifest"):
            founder.hand_over(signer(NEW), NOW)
        chain = rotate(signer(FOUNDER), signer(NEW), (), (), (), int(NOW), SWARM)
        with pytest.raises(RemoteProtocolError, match="founder"):
            register(9).take_rotation(chain)

    def test_a_stranger_and_whoever_is_expelled(self, founder: Register, friend: Register) -> None:
        with pytest.raises(LocalProtocolError, match="nobody has vouched"):
            register(9).hand_over(signer(NEW), NOW)
        assert meet(founder, friend)
        friend.take_expulsion(founder.expel(friend.me, "noise", NOW))
        with pytest.raises(LocalProtocolError, match="expelled"):
            friend.hand_over(signer(NEW), NOW)

    def test_a_chain_has_only_so_many_rotations(self, friend: Register) -> None:
        last = friend
        for number in range(20, 20 + limits.MAX_ROTATIONS):
            last = rotated(last, number)
        with pytest.raises(LocalProtocolError, match="the most"):
            last.hand_over(signer(NEW), NOW)

    def test_a_chain_names_only_so_many(self, founder: Register, friend: Register) -> None:
        for number in range(100, 100 + limits.MAX_ROTATED_NAMES):
            invite(friend, number)
        new = rotated(friend, NEW)
        assert meet(founder, new)
        invite(new, 4)
        with pytest.raises(LocalProtocolError, match="more than"):
            new.hand_over(signer(14), NOW)


class TestTheThief:
    """It holds the old key, after the owner has replaced it or before."""

    def test_it_lets_nobody_in_and_expels_nobody(
        self, founder: Register, friend: Register, guest: Register
    ) -> None:
        assert meet(friend, guest)
        new = rotated(friend, NEW)
        accomplice = invite(friend, 5)
        forged = friend.expel(guest.me, "", 0.0)  # whatever time it writes
        assert meet(founder, new)
        assert not meet(founder, accomplice)
        assert "did not name" in founder.standing(accomplice.me).reason
        assert not founder.take_expulsion(forged)
        assert meet(founder, guest)

    def test_what_it_did_before_anybody_heard_is_undone(
        self, founder: Register, friend: Register, guest: Register
    ) -> None:
        assert meet(friend, guest)
        new = rotated(friend, NEW)
        assert founder.take_expulsion(friend.expel(guest.me, "", NOW))
        assert not meet(founder, guest)
        assert meet(founder, new)
        assert meet(founder, guest)
        assert not founder.expulsions

    def test_two_keys_that_claim_one_place_are_both_out_whoever_was_first(
        self, friend: Register, guest: Register
    ) -> None:
        ours, theirs = rotated(friend, NEW), rotated(friend, THIEF)
        for told in itertools.permutations((ours.chain, theirs.chain)):
            judge = register(9)
            assert all(judge.take_rotation(one) for one in told)
            for one in (friend, ours, theirs, guest):
                assert not meet(judge, one)
                assert "two keys claim" in judge.standing(one.me).reason
            third = rotated(friend, 14)
            assert not judge.take_rotation(third.chain), "two are enough"
            assert not meet(judge, third)

    def test_then_the_inviter_invites_again(self, founder: Register, friend: Register) -> None:
        ours, theirs = rotated(friend, NEW), rotated(friend, THIEF)
        for one in (founder, ours):
            one.take_rotation(ours.chain)
            assert one.take_rotation(theirs.chain)
        assert not belongs(ours)
        ticket = founder.draw_ticket(bytes(32), 1, NOW)
        fresh = ours.is_used_up(ticket.secret)
        assert not fresh
        answer, chain = founder.admit(ours.me, ours.proof(founder.me, ticket.secret), NOW)
        assert answer, answer.reason
        assert ours.take_chain(chain, ticket.secret)
        assert belongs(ours)
        assert ours.is_used_up(ticket.secret)
        judge = register(9)
        judge.take_rotation(theirs.chain)
        assert meet(judge, ours)
        assert not meet(judge, friend)

    def test_two_that_say_different_things_of_one_new_key_contradict_each_other(
        self, friend: Register
    ) -> None:
        first = friend.hand_over(signer(NEW), NOW).chain
        second = friend.hand_over(signer(NEW), NOW + 1).chain
        judge = register(9)
        assert judge.take_rotation(first)
        assert judge.take_rotation(second)
        assert not meet(judge, register(NEW, Kept(first)))

    def test_all_decide_alike_in_whatever_order_they_hear(
        self, founder: Register, friend: Register, guest: Register
    ) -> None:
        """Of what the owner, the founder and a thief have signed."""
        below, bad = invite(guest, 4), invite(friend, 6)
        assert meet(friend, below)
        assert meet(founder, guest)
        fair = friend.expel(bad.me, "noise", NOW)
        new = rotated(friend, NEW)
        late = friend.expel(below.me, "by the thief", NOW)
        accomplice = invite(friend, 5)
        assert meet(new, below)
        told: list[Chain | Expulsion] = [new.chain, fair, late, founder.expel(guest.me, "", NOW)]
        answers = set()
        for order in itertools.permutations(told):
            judge = register(9)
            for one in order:
                if isinstance(one, Expulsion):
                    judge.take_expulsion(one)
                else:
                    judge.take_rotation(one)
            everybody = (friend, new, guest, below, bad, accomplice)
            answers.add(tuple(meet(judge, one) for one in everybody))
        assert answers == {(False, True, False, False, False, False)}


_rotated = Canonical(Rotated, "rotation")


def _with(chain: Chain, change: Callable[[Rotated], Rotated], by: int = FRIEND) -> Chain:
    """Return a chain whose rotation says something else, signed anew."""
    body = _rotated.encode(change(_rotated.parse(chain[-1].body)))
    return (*chain[:-1], signer(by).sign(ROTATE, body, SWARM))


def _said(change: Callable[[Succession], Succession]) -> Callable[[Rotated], Rotated]:
    return lambda whole: replace(whole, succession=change(whole.succession))


def _chain() -> Chain:
    return vouch(signer(FOUNDER), (), peer(FRIEND), int(NOW), SWARM)


def _good(swarm: SwarmId = SWARM) -> Chain:
    chain = vouch(signer(FOUNDER), (), peer(FRIEND), int(NOW), swarm)
    return rotate(signer(FRIEND), signer(NEW), chain, (peer(GUEST),), (), int(NOW), swarm)


def _resigned(envelope: Envelope, by: int) -> Envelope:
    return signer(by).sign(envelope.kind, envelope.body, SWARM)


BAD: dict[str, Chain] = {
    "signed by somebody else": (*_chain(), _resigned(_good()[-1], THIEF)),
    "of a key that the new key did not agree to": _with(
        _good(), _said(lambda said: replace(said, new=peer(THIEF)))
    ),
    "names that the new key did not sign": _with(
        _good(), _said(lambda said: replace(said, members=(peer(THIEF),)))
    ),
    "of another member's key": _with(_good(), _said(lambda said: replace(said, old=peer(GUEST)))),
    "a made-up signature": _with(_good(), lambda whole: replace(whole, taken=bytes(64))),
    "of another swarm": _good(OTHER_SWARM),
    "replayed in another swarm": (*_chain(), _good(OTHER_SWARM)[-1]),
    "of a member of another chain": (
        *vouch(signer(FOUNDER), (), peer(GUEST), int(NOW), SWARM),
        _good()[-1],
    ),
    "of a stranger": _good()[1:],
    "truncated": (*_chain(), replace(_good()[-1], body=_good()[-1].body[:-1])),
    "with a byte more": (*_chain(), replace(_good()[-1], body=_good()[-1].body + b"\0")),
    "to itself": rotate(signer(FRIEND), signer(FRIEND), _chain(), (), (), int(NOW), SWARM),
    "to the founder": rotate(signer(FRIEND), signer(FOUNDER), _chain(), (), (), int(NOW), SWARM),
    "no rotation at all": _chain(),
    "nothing": (),
}


class TestBadRotations:
    @pytest.mark.parametrize("what", BAD)
    def test_one_that_does_not_hold_is_refused(self, what: str) -> None:
        judge = register(9)
        with pytest.raises(RemoteProtocolError) as caught:
            judge.take_rotation(BAD[what])
        assert caught.value.penalty >= 20
        assert not judge.rotations

    def test_the_good_one_is_taken(self) -> None:
        assert register(9).take_rotation(_good())

    def test_too_many_names_or_rotations_are_refused(self) -> None:
        most = limits.MAX_ROTATED_NAMES
        half = tuple(peer(number) for number in range(200, 200 + most // 2))
        chain = rotate(signer(2), signer(3), _chain(), half, half, int(NOW), SWARM)
        assert members_of(chain, peer(FOUNDER), SWARM)
        one_more = rotate(signer(3), signer(4), chain, half[:1], (), int(NOW), SWARM)
        with pytest.raises(RemoteProtocolError, match="too many"):
            follow(one_more, peer(FOUNDER), SWARM)
        chain = _chain()
        for number in range(2, 3 + limits.MAX_ROTATIONS):
            chain = rotate(signer(number), signer(number + 1), chain, (), (), int(NOW), SWARM)
        with pytest.raises(RemoteProtocolError, match="too many"):
            follow(chain, peer(FOUNDER), SWARM)

    def test_the_largest_ones_fit(self) -> None:
        chain: Chain = ()
        for number in range(1, 1 + limits.MAX_VOUCHES):
            chain = vouch(signer(number), chain, peer(number + 1), int(NOW), SWARM)
        names = tuple(peer(n) for n in range(200, 200 + limits.MAX_ROTATED_NAMES // 4))
        for number in range(9, 9 + limits.MAX_ROTATIONS):
            chain = rotate(signer(number), signer(number + 1), chain, names, (), int(NOW), SWARM)
        assert len(follow(chain, peer(FOUNDER), SWARM).rotations) == limits.MAX_ROTATIONS
        assert len(msgspec.msgpack.encode(chain)) < limits.MAX_ADMISSION_BYTES - 64
        told = RotationList([list(chain)] * limits.MAX_ROTATIONS_PER_MESSAGE)
        assert len(encode_message(told)) < limits.MAX_HEADER_BYTES
        large = signer(1).sign("expel", bytes(400), SWARM)
        out = ExpulsionList([Expulsion(large, list(chain))] * limits.MAX_EXPULSIONS_PER_MESSAGE)
        assert len(encode_message(out)) < limits.MAX_HEADER_BYTES

    def test_a_flood_of_them_displaces_none_of_those_above(
        self, founder: Register, friend: Register
    ) -> None:
        real = rotated(friend, NEW)
        bad = invite(founder, 5)
        judge = register(9)
        assert judge.take_rotation(real.chain)
        for number in range(1000, 1001 + MAX_KNOWN):
            chain = vouch(signer(5), bad.chain, peer(number), int(NOW), SWARM)
            judge.take_rotation(
                rotate(signer(number), signer(5000 + number), chain, (), (), number, SWARM)
            )
        assert len(judge.rotations) == MAX_KNOWN
        assert real.chain in judge.rotations

    def test_keys_that_replace_each_other_in_a_circle_hold_nobody_up(self) -> None:
        judge = register(9)
        for old, new in ((2, 3), (3, 2)):
            chain = vouch(signer(FOUNDER), (), peer(old), int(NOW), SWARM)
            assert judge.take_rotation(
                rotate(signer(old), signer(new), chain, (), (), int(NOW), SWARM)
            )
        assert not judge.admit(
            PeerId(peer(2)), register(2, Kept(_chain())).proof(judge.me, None), NOW
        )[0]
