"""Who is out for the rest of the run: one verdict a culprit, which everything here reads.

A verdict has its *certificate*, which anybody can check: a proof (two signed bodies of the culprit
that contradict each other, ``evidence/proof.py``), or the charges of a majority of its stage
(``audit/charges.py``). Nothing is checked here. State: the verdicts, the oldest first. Of many the
oldest are dropped, and before them their certificates; those of strangers, whom anybody can invent,
first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from protocol.ids import PeerId
from protocol.wire.parts import Proof, VotedOut

MAX_VERDICTS: Final = 4096
"""Culprits that are remembered; the oldest stranger is forgotten first."""
MAX_CERTIFICATES: Final = 64
"""Of each kind, the newest: they are told to newcomers, and kept on disk."""

Certificate = Proof | VotedOut


@dataclass(frozen=True, slots=True)
class Verdict:
    """A culprit, what it did in words, and the certificate; None: it is dropped."""

    culprit: PeerId
    words: str
    certificate: Certificate | None
    member: bool = True
    """Whether the culprit has worked, as far as we know; of others the certificates are dropped
    first."""


class Verdicts:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._verdicts: dict[PeerId, Verdict] = {}

    def __contains__(self, peer: object) -> bool:
        return peer in self._verdicts

    def __len__(self) -> int:
        return len(self._verdicts)

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self._verdicts.values())

    @property
    def proofs(self) -> tuple[Proof, ...]:
        """The proofs that are kept."""
        kept = (verdict.certificate for verdict in self)
        return tuple(one for one in kept if isinstance(one, Proof))

    @property
    def votes(self) -> tuple[VotedOut, ...]:
        """The charges of majorities that are kept."""
        kept = (verdict.certificate for verdict in self)
        return tuple(one for one in kept if isinstance(one, VotedOut))

    def add(self, verdict: Verdict) -> bool:
        """Take a verdict, whose certificate was checked; False: its culprit is out already."""
        if verdict.culprit in self._verdicts:
            return False
        if len(self._verdicts) >= MAX_VERDICTS:
            del self._verdicts[min(self, key=lambda one: one.member).culprit]
        self._verdicts[verdict.culprit] = verdict
        kind = type(verdict.certificate)
        kept = [one for one in self if isinstance(one.certificate, kind)]
        if len(kept) > MAX_CERTIFICATES:
            dropped = min(kept, key=lambda one: one.member)
            self._verdicts[dropped.culprit] = replace(dropped, certificate=None)
        return True
