"""The amendments that one volunteer knows, and which of them holds at a step.

Whoever has an amendment tells it; it counts from whomever it comes, by its founder's signature. An
amendment restates everything, so of all that are due at a step the one with the highest number
holds, and no other matters. Of two with one number the one with the higher digest counts, for all
alike.

All replicas of a stage have to use a new schedule from the same step on. So the plan of a round
names the amendment that holds, by what its leader knows, and the decree makes it so; a stage that
hears of an amendment later turns later. How long the run is changes no number of any step, so that
follows from what is known alone.

State: one amendment of each number. No I/O; the driver keeps them on disk (``KeptAmendments``).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from model_zoo.specs.optimizer import OptimizerSpec, learning_rate
from protocol import limits
from protocol.amendments.amendment import Amendment, digest_of, parse_amendment
from protocol.answer import YES, Answer, no
from protocol.errors import RemoteProtocolError
from protocol.ids import SwarmId
from protocol.manifest import Manifest
from protocol.wire.fields import Envelope


class KeptAmendments(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state on disk."""

    amendments: Annotated[tuple[Envelope, ...], Meta(max_length=limits.MAX_AMENDMENTS)] = ()


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
    """See the module's docstring. Where a digest names an amendment, an empty one names none. What
    is kept and does not verify is left out."""

    def __init__(
        self, manifest: Manifest, swarm: SwarmId, kept: KeptAmendments | None = None
    ) -> None:
        self._run, self._swarm = manifest, swarm
        self.counting: Sequence[Known] = ()
        """One of each number, in rising order."""
        for envelope in kept.amendments if kept else ():
            with suppress(RemoteProtocolError):
                self.take(envelope)

    def take(self, envelope: Envelope) -> Known | None:
        """Take an amendment that somebody has brought; None: it changes nothing.

        Raises:
            RemoteProtocolError: it is not the founder's, or malformed (``parse_amendment``).
        """
        digest, run = digest_of(envelope), self._run
        if self._find(digest) is not None:
            return None
        said = parse_amendment(envelope, self._swarm, run.founder, run.optimizer)
        found = Known(said, digest, envelope)
        known = sorted([*self.counting, found], key=lambda one: one.order)
        self.counting = tuple({one.amendment.number: one for one in known}.values())
        return found if found in self.counting else None

    def _find(self, digest: bytes) -> Known | None:
        return next((one for one in self.counting if one.digest == digest), None)

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
        return KeptAmendments(tuple(one.envelope for one in self.counting))

    @property
    def notice(self) -> int:
        """Steps from the one at which an amendment is signed to the first for which it should hold:
        by then every stage has heard of it."""
        return 2 * self._run.stage_count + 2

    # --- by step -----------------------------------------------------------------------------

    def due(self, step: int) -> bytes:
        """Return the digest of the amendment that holds for the update of a step."""
        due = [one.digest for one in self.counting if self._is_due(one, step)]
        return due[-1] if due else b""

    def may_hold(self, named: bytes, step: int, last: bytes) -> Answer:
        """Whether the amendment that a plan of a step names may hold: it is due, and none before
        the one that the stage's ``last`` step went by. If we lack that, any may."""
        one, before = self._find(named), self._find(last)
        if named and one is None:
            return no("a plan names an amendment of the founder that we have not got")
        if one is not None and not self._is_due(one, step):
            return no("a plan names an amendment that does not hold yet")
        if before is not None and (one is None or one.order < before.order):
            return no("a plan leaves out an amendment by which our stage goes")
        return YES

    def _is_due(self, one: Known, step: int) -> bool:
        return one.amendment.from_step <= self._rated(step)

    def rate(self, digest: bytes, step: int) -> float | None:
        """Return the learning rate that goes with the update of a step; None: the manifest's
        schedule holds, or we do not have the amendment."""
        one = self._find(digest)
        if one is None:
            return None
        return learning_rate(one.amendment.optimizer, self._rated(step))

    def rate_at(self, version: int) -> float | None:
        """Return the learning rate of the steps inside a round that begins at a version; None: the
        manifest's schedule holds."""
        due = [one.amendment for one in self.counting if one.amendment.from_step <= version]
        return learning_rate(due[-1].optimizer, version) if due else None

    def _rated(self, step: int) -> int:
        """Return the step whose rate goes with the update of a step. In local rounds it is the next
        one: those inside this one have been taken."""
        return step if self._run.local_rounds is None else step + 1
