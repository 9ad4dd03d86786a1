"""Members that do all their work, and say one kind of message otherwise than it is: changed, many
times over, late or never."""

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from types import UnionType

from msgspec.structs import replace

from protocol.ids import PeerId
from protocol.limits import MAX_NUMBER
from protocol.manifest import Manifest
from protocol.pipeline.place import Place
from protocol.rounds import leader
from protocol.wire.messages import Backward, Forward, LedgerReport, Message, Plan, Ready, Segment
from tests.hostile.attack import Attack, Bounds, Distorter, Outgoing

Change = Callable[[Distorter, PeerId, Message], Message]
Send = Callable[[Message, bytes], Sequence[Outgoing]]
LOSSES = (0.0, 5e26, 9e29)
MALFORMED = 6
"""At 20 points each, more than a ban takes."""
TIMES = 50


class Changing(Distorter):
    """Sends what a change makes of each message."""

    def __init__(self, change: Change, me: PeerId, manifest: Manifest) -> None:
        super().__init__(me, manifest)
        self._change = change

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Send the other message."""
        return [(self._change(self, peer, message), payload)]


class Sending(Distorter):
    """Sends messages of some types in another way."""

    def __init__(
        self, kinds: type[Message] | UnionType, send: Send, me: PeerId, manifest: Manifest
    ) -> None:
        super().__init__(me, manifest)
        self._kinds, self._send = kinds, send

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Send what is meant otherwise."""
        if isinstance(message, self._kinds):
            return self._send(message, payload)
        return [(message, payload)]


def late(seconds: float) -> Send:
    """Below every deadline."""
    return lambda message, payload: [(message, payload, seconds)]


def never(_message: Message, _payload: bytes) -> Sequence[Outgoing]:
    """Swallow it."""
    return []


def again(message: Message, payload: bytes) -> Sequence[Outgoing]:
    """Repeat what is as long as the step has microbatches."""
    return [(message, payload)] * TIMES


def malformed_first(message: Message, payload: bytes) -> Sequence[Outgoing]:
    """Only siblings get segments, so only they see that six of them are more than a stage has."""
    return [(message, payload * 3)] * MALFORMED + [(message, payload)]


def other_digest(liar: Distorter, _peer: PeerId, message: Message) -> Message:
    """Be Ready for gradients that nobody has."""
    if isinstance(message, Ready):
        return liar.signed(replace(message, digest=b"x" * 32))
    return message


def full_ledger(liar: Distorter, _peer: PeerId, message: Message) -> Message:
    """Report every microbatch; what is contributed is of those that it has."""
    if isinstance(message, LedgerReport):
        count = liar.manifest.microbatches_per_step
        done = ((1 << count) - 1).to_bytes(-(-count // 8), "little")
        return replace(message, done=done, in_flight=bytes(len(done)))
    return message


def largest_loss(_liar: Distorter, _peer: PeerId, message: Message) -> Message:
    """Results computed from such numbers are illegal, so honest peers would send them."""
    if isinstance(message, Ready) and message.digest != bytes(32):
        return replace(message, loss_sum=MAX_NUMBER)
    return message


def false_loss(_liar: Distorter, _peer: PeerId, message: Message) -> Message:
    """Say one loss that cannot be after the other, and decree it where we lead."""
    leader.sum = lambda _losses: secrets.choice(LOSSES)
    if isinstance(message, Ready):
        return replace(message, loss_sum=LOSSES[message.step % len(LOSSES)])
    return message


def busy(_liar: Distorter, _peer: PeerId, message: Message) -> Message:
    """Turn every microbatch away: there is no place for any."""
    Place.max_queue = 0
    return message


def other_electors(liar: Distorter, peer: PeerId, message: Message) -> Message:
    """Sign another plan of the same attempt for one member: in a split another one decides."""
    if isinstance(message, Plan) and peer == max(
        member.peer for member in message.members if member.peer != liar.me
    ):
        electors = [*message.electors[1:], *message.electors[:1]]
        return liar.signed(replace(message, electors=electors))
    return message


ATTACKS = (
    Attack(
        name="wrong-digest",
        issue="B4",
        what="A replica is Ready with a digest that no sibling has.",
        member=partial(Changing, other_digest),
    ),
    Attack(
        name="claims-everything",
        issue="17",
        what="A replica reports that it has counted every microbatch of each step.",
        member=partial(Changing, full_ledger),
    ),
    Attack(
        name="legal-huge-numbers",
        issue="B10",
        what="A replica of the last stage says that its losses are 1e30.",
        member=partial(Changing, largest_loss),
    ),
    Attack(
        name="false-losses",
        issue="B10",
        what="A replica of the last stage says losses of 0 and 5e26, also when it leads.",
        member=partial(Changing, false_loss),
    ),
    Attack(
        name="refuses",
        issue="B4",
        what="A replica answers busy to every microbatch that it is sent.",
        member=partial(Changing, busy),
    ),
    Attack(
        name="two-plans",
        issue="17.1",
        what="A leader of three signs two plans of one attempt, and sends each member one.",
        member=partial(Changing, other_electors),
        honest=5,
        bounds=Bounds(shut_out_by=5),
    ),
    Attack(
        name="big-plan",
        issue="B9",
        what="A replica says every plan and ledger of steps of 64 microbatches fifty times.",
        member=partial(Sending, Plan | LedgerReport, again),
        microbatches=64,
    ),
    Attack(
        name="banned-by-sibling",
        issue="B4",
        what="A replica sends its only sibling six malformed segments and works for all others.",
        member=partial(Sending, Segment, malformed_first),
    ),
    Attack(
        name="sleeper-1s",
        issue="B4",
        what="A replica returns every gradient 1 s late.",
        member=partial(Sending, Backward, late(1.0)),
    ),
    Attack(
        name="sleeper-4s",
        issue="B4",
        what="A replica returns every gradient 4 s late.",
        member=partial(Sending, Backward, late(4.0)),
    ),
    Attack(
        name="no-gradients",
        issue="B4",
        what="A replica takes every microbatch, counts it and returns no gradient.",
        member=partial(Sending, Backward, never),
    ),
    Attack(
        name="keeps-leases",
        issue="B4",
        what="A replica of stage 0 keeps every microbatch that it is leased.",
        member=partial(Sending, Forward, never),
        stage=0,
    ),
)
