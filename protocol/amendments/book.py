"""The amendments that one volunteer knows, and which of them its stages have agreed on.

**Known.** Whoever has an amendment tells it; it counts from whomever it comes, by its founder's
signature. Of two different ones with one number neither counts, nor does any after them, unless
the stages had agreed on one of them before: then that one stays.

**Agreed.** All replicas of a stage have to use a new schedule from the same step on. So a list of
(amendment, first step) is part of every plan of a round: what the commit of a step decides, every
replica at the next version knows (``rounds/agreeing.py``). How long the run is changes no number of
any step, so that follows from what is known alone.

State: at most two amendments of each number, and the newest list. No I/O; the driver keeps them on
disk (``KeptAmendments``).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from model_zoo.specs.course import Course, Turn
from model_zoo.specs.optimizer import OptimizerSpec
from protocol import limits
from protocol.agreed import AgreedAmendment, AgreedList
from protocol.amendments.amendment import Amendment, digest_of, parse_amendment
from protocol.errors import RemoteProtocolError
from protocol.ids import SwarmId
from protocol.manifest import Manifest
from protocol.wire.fields import Envelope

MAX_CHAINS = 64
"""Remembered, of the lists that others name."""
MAX_OF_A_NUMBER = 2
"""Two show that the founder contradicts itself; a third would show nothing more."""


class KeptAmendments(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state on disk."""

    amendments: Annotated[
        tuple[Envelope, ...], Meta(max_length=MAX_OF_A_NUMBER * limits.MAX_AMENDMENTS)
    ] = ()
    agreed: Annotated[AgreedList, Meta(max_length=limits.MAX_AMENDMENTS)] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """An amendment that is the founder's."""

    amendment: Amendment
    digest: bytes
    envelope: Envelope


class Amendments:
    """See the module's docstring.

    Args:
        manifest: the run's; it says who the founder is.
        swarm: its id.
        kept: the state from disk; what does not verify is left out.
    """

    def __init__(
        self, manifest: Manifest, swarm: SwarmId, kept: KeptAmendments | None = None
    ) -> None:
        self._run, self._swarm = manifest, swarm
        self._known: dict[int, dict[bytes, Known]] = {}
        self._chains: dict[AgreedList, tuple[Known, ...]] = {}
        """What ``chain`` has found since something was new, by list."""
        self.agreed: AgreedList = ()
        """The newest list that a stage of ours has agreed on."""
        for envelope in kept.amendments if kept else ():
            with suppress(RemoteProtocolError):
                self.take(envelope)
        if kept is not None:
            self.agreed = kept.agreed

    # --- what is known -----------------------------------------------------------------------

    def take(self, envelope: Envelope) -> Known | None:
        """Take an amendment that somebody has brought; None: there is nothing new about it.

        Raises:
            RemoteProtocolError: it is not the founder's, or malformed (``parse_amendment``).
        """
        digest = digest_of(envelope)
        if any(digest in of for of in self._known.values()):
            return None
        run = self._run
        said = parse_amendment(envelope, self._swarm, run.founder, run.optimizer)
        of = self._known.setdefault(said.number, {})
        if len(of) >= MAX_OF_A_NUMBER:
            return None
        self._chains.clear()
        of[digest] = found = Known(said, digest, envelope)
        return found

    def chain(self, agreed: AgreedList | None = None) -> tuple[Known, ...]:
        """Return the amendments that count, from the first on: those of a list, and what follows it
        without a contradiction.

        Args:
            agreed: the list; None: the newest of ours.
        """
        agreed = self.agreed if agreed is None else agreed
        if (known := self._chains.get(agreed)) is not None:
            return known
        if len(self._chains) >= MAX_CHAINS:
            self._chains.clear()
        self._chains[agreed] = found = tuple(self._follow(agreed))
        return found

    def _follow(self, agreed: AgreedList) -> list[Known]:
        found, before = list[Known](), b""
        for number in range(1, limits.MAX_AMENDMENTS + 1):
            of = self._known.get(number, {})
            fitting = [one for one in of.values() if one.amendment.before == before]
            if number <= len(agreed):
                fitting = [one for one in fitting if one.digest == agreed[number - 1].digest]
            elif len(of) > 1:
                break
            if not fitting:
                break
            found.append(fitting[0])
            before = fitting[0].digest
        return found

    @property
    def contradiction(self) -> int | None:
        """The number of which the founder has signed two amendments, so that none after those
        before it counts; None: there is none."""
        number = len(self.chain()) + 1
        return number if len(self._known.get(number, {})) > 1 else None

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        chain = self.chain()
        return chain[-1].amendment.steps if chain else self._run.steps

    @property
    def newest(self) -> OptimizerSpec:
        """The optimizer as the newest amendment has it, agreed on or not."""
        chain = self.chain()
        return chain[-1].amendment.optimizer if chain else self._run.optimizer

    def before(self, number: int) -> tuple[int, OptimizerSpec]:
        """Return steps and optimizer of the run before an amendment that counts, by its number."""
        chain = self.chain()[: number - 1]
        if not chain:
            return self._run.steps, self._run.optimizer
        return chain[-1].amendment.steps, chain[-1].amendment.optimizer

    @property
    def longest(self) -> int:
        """A bound of the versions that there can be: also of a run that was shortened."""
        return max(self._run.steps, *(one.amendment.steps for one in self.chain()), 0)

    @property
    def envelopes(self) -> list[Envelope]:
        """All that are known, to be told to others: by number."""
        return [one.envelope for _, of in sorted(self._known.items()) for one in of.values()]

    @property
    def kept(self) -> KeptAmendments:
        """The state to be kept on disk."""
        return KeptAmendments(tuple(self.envelopes), self.agreed)

    # --- what is agreed ----------------------------------------------------------------------

    def settle(self, agreed: AgreedList) -> bool:
        """A stage of ours has closed a step with this list; return whether it is new to us."""
        if agreed == self.agreed or len(agreed) < len(self.agreed):
            return False
        self.agreed = agreed
        return True

    def knows(self, agreed: AgreedList) -> bool:
        """Whether we have every amendment of a list, and they follow each other."""
        return len(self.chain(agreed)) >= len(agreed)

    def propose(self, agreed: AgreedList, step: int) -> AgreedList:
        """Return a list with what is known beyond it, as a stage decides at a step."""
        new, last = list(agreed), agreed[-1].from_step if agreed else 0
        for one in self.chain(agreed)[len(agreed) :]:
            last = max(last, one.amendment.from_step, step)
            new.append(AgreedAmendment(one.digest, last))
        return tuple(new)

    @property
    def notice(self) -> int:
        """Steps from the one at which an amendment is signed to the first for which it should hold:
        by then every stage has heard of it."""
        return 2 * self._run.stage_count + 2

    def course(self, agreed: AgreedList | None = None) -> Course:
        """Return the course of the run by a list (None: the newest of ours), as far as we know its
        amendments."""
        agreed = self.agreed if agreed is None else agreed
        pairs = zip(agreed, self.chain(agreed), strict=False)
        turns = [Turn(one.from_step, known.amendment.optimizer) for one, known in pairs]
        return Course(self._run.optimizer, tuple(turns))

    def rate(self, agreed: AgreedList, step: int) -> float | None:
        """Return the learning rate that goes with the update of a step, by a list; None: the
        manifest's schedule holds.

        In local rounds it is that of the next step: those inside this one have been taken.
        """
        return self._rate_of(agreed, step if self._run.local_rounds is None else step + 1)

    def rate_at(self, version: int) -> float | None:
        """Return the learning rate of the steps inside a round that begins at a version, by the
        newest of our lists; None: the manifest's schedule holds."""
        return self._rate_of(self.agreed, version)

    def _rate_of(self, agreed: AgreedList, step: int) -> float | None:
        if all(one.from_step > step for one in agreed):
            return None
        return self.course(agreed).learning_rate(step)
