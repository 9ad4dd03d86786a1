"""The amendments that one volunteer knows, and which of them holds at a step.

Whoever has an amendment tells it; it counts from whomever it comes, by its founder's signature. An
amendment restates everything, so of all that are due at a step the one with the highest number
holds, and no other matters. Of two with one number the one with the higher digest counts, for all
alike.

All replicas of a stage have to use a new schedule from the same step on. So the plan of a round
names the amendment that holds (``rounds/agreeing.py``). How long the run is changes no number of
any step, so that follows from what is known alone.

State: at most two amendments of each number. No I/O; the driver keeps them on disk
(``KeptAmendments``).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from model_zoo.specs.optimizer import OptimizerSpec, learning_rate
from protocol import limits
from protocol.amendments.amendment import Amendment, digest_of, parse_amendment
from protocol.errors import RemoteProtocolError
from protocol.ids import SwarmId
from protocol.manifest import Manifest
from protocol.wire.fields import Envelope

MAX_OF_A_NUMBER = 2
"""A founder may sign on two machines; who signs more is no honest one."""


class KeptAmendments(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state on disk."""

    amendments: Annotated[
        tuple[Envelope, ...], Meta(max_length=MAX_OF_A_NUMBER * limits.MAX_AMENDMENTS)
    ] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """An amendment that is the founder's."""

    amendment: Amendment
    digest: bytes
    envelope: Envelope

    @property
    def order(self) -> tuple[int, bytes]:
        """Of two amendments the one with the higher order counts."""
        return self.amendment.number, self.digest


class Amendments:
    """See the module's docstring. Where a digest names an amendment, an empty one names none.

    Args:
        manifest: the run's; it says who the founder is.
        swarm: its id.
        kept: the state from disk; what does not verify is left out.
    """

    def __init__(
        self, manifest: Manifest, swarm: SwarmId, kept: KeptAmendments | None = None
    ) -> None:
        self._run, self._swarm = manifest, swarm
        self._known: dict[bytes, Known] = {}
        self.counting: Sequence[Known] = ()
        """Those that count, one of each number, in rising order."""
        for envelope in kept.amendments if kept else ():
            with suppress(RemoteProtocolError):
                self.take(envelope)

    def take(self, envelope: Envelope) -> Known | None:
        """Take an amendment that somebody has brought; None: there is nothing new about it.

        Raises:
            RemoteProtocolError: it is not the founder's, or malformed (``parse_amendment``).
        """
        digest = digest_of(envelope)
        if digest in self._known:
            return None
        run = self._run
        said = parse_amendment(envelope, self._swarm, run.founder, run.optimizer)
        alike = [one for one in self._known.values() if one.amendment.number == said.number]
        if len(alike) >= MAX_OF_A_NUMBER:
            return None
        self._known[digest] = found = Known(said, digest, envelope)
        known = sorted(self._known.values(), key=lambda one: one.order)
        self.counting = tuple({one.amendment.number: one for one in known}.values())
        return found

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.counting[-1].amendment.steps if self.counting else self._run.steps

    @property
    def newest(self) -> OptimizerSpec:
        """The optimizer as the newest amendment has it, due or not."""
        return self.counting[-1].amendment.optimizer if self.counting else self._run.optimizer

    def before(self, number: int) -> tuple[int, OptimizerSpec]:
        """Return steps and optimizer of the run before an amendment, by its number."""
        earlier = [one.amendment for one in self.counting if one.amendment.number < number]
        last = earlier[-1] if earlier else self._run
        return last.steps, last.optimizer

    @property
    def longest(self) -> int:
        """A bound of the versions that there can be: also of a run that was shortened."""
        return max(self._run.steps, *(one.amendment.steps for one in self.counting), 0)

    @property
    def kept(self) -> KeptAmendments:
        """The state to be kept on disk, and to be told to others."""
        known = sorted(self._known.values(), key=lambda one: one.order)
        return KeptAmendments(tuple(one.envelope for one in known))

    @property
    def notice(self) -> int:
        """Steps from the one at which an amendment is signed to the first for which it should hold:
        by then every stage has heard of it."""
        return 2 * self._run.stage_count + 2

    # --- by step -----------------------------------------------------------------------------

    def due(self, step: int) -> bytes:
        """Return the digest of the amendment that holds for the update of a step."""
        due = [one.digest for one in self.counting if self.may_hold(one.digest, step)]
        return due[-1] if due else b""

    def knows(self, digest: bytes) -> bool:
        """Whether we have the amendment."""
        return not digest or digest in self._known

    def may_hold(self, digest: bytes, step: int) -> bool:
        """Whether an amendment, as far as we have it, holds already for the update of a step."""
        known = self._known.get(digest)
        return known is None or known.amendment.from_step <= self._rated(step)

    def is_older(self, digest: bytes, other: bytes) -> bool:
        """Whether the second one of two counts before the first one; one that we lack counts before
        none."""
        return self._order(digest) < self._order(other)

    def _order(self, digest: bytes) -> tuple[int, bytes]:
        known = self._known.get(digest)
        return (0, b"") if known is None else known.order

    def rate(self, digest: bytes, step: int) -> float | None:
        """Return the learning rate that goes with the update of a step; None: the manifest's
        schedule holds, or we do not have the amendment."""
        if (known := self._known.get(digest)) is None:
            return None
        return learning_rate(known.amendment.optimizer, self._rated(step))

    def rate_at(self, version: int) -> float | None:
        """Return the learning rate of the steps inside a round that begins at a version; None: the
        manifest's schedule holds."""
        due = [one.amendment for one in self.counting if one.amendment.from_step <= version]
        return learning_rate(due[-1].optimizer, version) if due else None

    def _rated(self, step: int) -> int:
        """Return the step whose rate goes with the update of a step. In local rounds it is the next
        one: those inside this one have been taken."""
        return step if self._run.local_rounds is None else step + 1
