"""Match records: the agreements of this volunteer and its stewards, with both signatures.

It signs our letters and opens those of others, so that it can pair a HOLD with the proposal that it
answers once the matching says that both are final. State: our last proposals, the last HOLD and the
match records. Decides nothing. A stage for which we are steward ourselves has no record, because
those letters never leave the machine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from client.store.agreements import MAX_RECORDS, load_records, save_records
from client.store.packed import DamagedFile
from protocol.effects import Explain
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, Stage, SwarmId, parse_peer_id, short
from protocol.matching import bodies
from protocol.matching.record import Match, MatchRecord, read_record
from protocol.wire.envelope import Signer, verify
from protocol.wire.fields import Envelope
from protocol.wire.messages import Signed

REMEMBERED_PROPOSALS: Final = 16
"""A HOLD answers the last message of a bid or one shortly before it."""
REWRITE_S: Final = 60.0
"""Shortest time between two writes that only renew saved records."""

_PROPOSE: Final = bodies.KINDS[bodies.Propose]
_HOLD: Final = bodies.KINDS[bodies.Hold]


class RecordSubject(NamedTuple):
    """The subject of one record: a stage under one mandate of one steward."""

    stage: Stage
    steward: PeerId
    mandate: bodies.Mandate


class Agreements:
    """See the module's docstring.

    Args:
        signer: our identity.
        swarm: the context of all signatures.
        explain: tells the user what went wrong with the file.
    """

    def __init__(self, signer: Signer, swarm: SwarmId, explain: Callable[[Explain], None]) -> None:
        self._signer, self._swarm, self._explain = signer, swarm, explain
        self._path: Path | None = None
        self._proposals: OrderedDict[int, Envelope] = OrderedDict()
        """By version."""
        self._hold: Envelope | None = None
        self._records: OrderedDict[RecordSubject, tuple[MatchRecord, Match]] = OrderedDict()
        """The oldest first; every one is valid."""
        self._written_at = float("-inf")

    def keep_in(self, path: Path) -> None:
        """Load the records of a file, and save to it from now on.

        Damaged or forged records are reported and dropped.
        """
        self._path = path
        try:
            found = load_records(path)
        except (DamagedFile, OSError) as error:
            self._warn(f"the match records cannot be read, starting new ones: {error}")
            return
        for record in found:
            try:
                self._add(record)
            except RemoteProtocolError as error:
                self._warn(f"a match record of {path} is not genuine: {error.reason}")

    # --- letters --------------------------------------------------------------------------------

    def sign(self, kind: str, body: bytes) -> Signed:
        """Sign one of our letters; proposals are remembered."""
        envelope = self._signer.sign(kind, body, self._swarm)
        if kind == _PROPOSE:
            proposal = bodies.decode_body(kind, body)
            if isinstance(proposal, bodies.Propose):
                self._proposals[proposal.version] = envelope
                self._proposals.move_to_end(proposal.version)
        while len(self._proposals) > REMEMBERED_PROPOSALS:
            self._proposals.popitem(last=False)
        return Signed(envelope)

    def open(self, peer: PeerId, message: Signed) -> Envelope:
        """Check a letter that a peer has brought: it signs for itself only.

        Raises:
            RemoteProtocolError: the signature is bad or somebody else's.
        """
        envelope = message.envelope
        verify(envelope, self._swarm)
        if parse_peer_id(envelope.signer) != peer:
            raise RemoteProtocolError("signed-by-another", short(envelope.signer), 50)
        if envelope.kind == _HOLD:
            self._hold = envelope
        return envelope

    # --- records --------------------------------------------------------------------------------

    def agreed(self, stage: Stage, version: int, now: float) -> None:
        """The HOLD just opened has made a place final: keep it with the proposal it answers.

        Args:
            stage: the stage of the place.
            version: number of the proposal.
            now: monotonic seconds.
        """
        proposal, hold = self._proposals.get(version), self._hold
        if proposal is None or hold is None:
            return  # we are that steward: the letters were never signed
        try:
            event_sink = self._add(MatchRecord(proposal, hold), stage)
        except RemoteProtocolError:
            return  # the HOLD was one of ours, and the last one from outside another stage's
        if event_sink or now >= self._written_at + REWRITE_S:
            self._write(now)

    def newest(self, stage: Stage) -> Match | None:
        """Return the last agreement about a stage of this volunteer."""
        for _, match in reversed(self._records.values()):
            if match.stage == stage and match.volunteer == self._signer.peer:
                return match
        return None

    def _add(self, record: MatchRecord, stage: Stage | None = None) -> bool:
        """Add a genuine record; return whether its place had none.

        Raises:
            RemoteProtocolError: it proves nothing, or is about another stage.
        """
        match = read_record(record, self._swarm)
        if stage is not None and match.stage != stage:
            raise RemoteProtocolError("match-record-unrelated", "another stage")
        hold = bodies.decode_body(record.hold.kind, record.hold.body)
        place = RecordSubject(match.stage, match.steward, hold.mandate)
        known = self._records.pop(place, None)
        self._records[place] = (record, match)
        while len(self._records) > MAX_RECORDS:
            self._records.popitem(last=False)
        return known is None

    def _write(self, now: float) -> None:
        if self._path is None:
            return
        self._written_at = now
        try:
            save_records(self._path, [record for record, _ in self._records.values()])
        except OSError as error:  # a full disk must not stop training
            self._warn(f"the match records cannot be written: {error.strerror}")

    def _warn(self, words: str) -> None:
        self._explain(Explain("matching", words, "warning"))
