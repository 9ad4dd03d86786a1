"""Chains of vouches: proofs of membership in a swarm."""

import msgspec
import pytest
from msgspec.structs import replace

from protocol import limits
from protocol.errors import RemoteProtocolError
from protocol.vouching.chain import Chain, members_of, vouch
from protocol.wire.fields import Envelope
from tests.support.protocol_examples import OTHER_SWARM, SWARM, peer, signer

FOUNDER = 1
NOW = 1_800_000_000


def chain_of(*numbers: int) -> Chain:
    """The founder has invited the first of these, that one the next, and so on."""
    chain: Chain = ()
    for by, member in zip((FOUNDER, *numbers), numbers, strict=False):
        chain = vouch(signer(by), chain, peer(member), NOW, SWARM)
    return chain


def test_a_chain_names_everybody_between_the_founder_and_its_owner() -> None:
    assert members_of(chain_of(2, 3, 4), peer(FOUNDER), SWARM) == (peer(2), peer(3), peer(4))
    assert members_of((), peer(FOUNDER), SWARM) == ()


def _signed_over(envelope: Envelope, by: int) -> Envelope:
    return signer(by).sign(envelope.kind, envelope.body, SWARM)


WHOLE = chain_of(2, 3, 4)
BROKEN: dict[str, Chain] = {
    "another founder's": (_signed_over(WHOLE[0], 9),),
    "a link left out": (WHOLE[0], WHOLE[2]),
    "in another order": (WHOLE[1], WHOLE[0], WHOLE[2]),
    "signed by somebody else": (WHOLE[0], _signed_over(WHOLE[1], 7)),
    "a signature of other words": (replace(WHOLE[0], signature=WHOLE[1].signature),),
    "of another kind": (signer(FOUNDER).sign("advert", WHOLE[0].body, SWARM),),
    "truncated": (replace(WHOLE[0], body=WHOLE[0].body[:-1]),),
    "in a circle": chain_of(2, 3, 2),
    "back to the founder": chain_of(2, FOUNDER),
    "too long": chain_of(*range(2, 3 + limits.MAX_CHAIN)),
    "of another swarm": (signer(FOUNDER).sign("vouch", WHOLE[0].body, OTHER_SWARM),),
}


@pytest.mark.parametrize("chain", BROKEN.values(), ids=BROKEN)
def test_a_chain_that_does_not_hold_is_refused(chain: Chain) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        members_of(chain, peer(FOUNDER), SWARM)
    assert caught.value.penalty >= 20


def test_the_longest_chain_fits_into_a_hello() -> None:
    longest = chain_of(*range(2, 2 + limits.MAX_CHAIN))
    assert len(members_of(longest, peer(FOUNDER), SWARM)) == limits.MAX_CHAIN
    assert len(msgspec.msgpack.encode(longest)) < limits.MAX_ADMISSION_BYTES - 64
