"""The notary signs what decides rounds, and nothing that contradicts its earlier signatures.

Plans and commitments pass it on their way out; Readys and the votes of our
elector are signed here before. Each statement is on the disk before it is sent, so that the next
process of this home does not contradict it. After a reboot, or where the system does not tell boots
apart, the file may be old (power loss, a home from a backup): then the first attempts of the step
at which a stage is taken, and the steps that we may have voted in are left out.
State: our newest statements, and the elector.
"""

from pathlib import Path
from typing import Final, TypeVar

from msgspec.structs import replace

from client.store.boot import this_boot
from client.store.marks import Kept, MarksFile
from client.store.persisted import DamagedFile
from client.train.ports import Ports
from protocol.decree.decree import READY
from protocol.decree.elector import Elector, Sight
from protocol.effects import Explain
from protocol.errors import RemoteProtocolError
from protocol.evidence.statement import Decisive, statement_of
from protocol.evidence.word import OwnWord
from protocol.ids import PeerId
from protocol.wire.envelope import verify
from protocol.wire.fields import Envelope
from protocol.wire.statement import Statement, encode_statement, parse_statement

Said = TypeVar("Said", bound=Decisive)

LEFT_OUT: Final = 64
"""Attempts of a step that an old file may not know of; hardly any step needs so many."""


class Notary:
    """See the module's docstring.

    Args:
        sees: what this volunteer sees, by which its elector votes.
        path: of the file, which holds the statements of the previous process; None: none is kept.
    """

    def __init__(self, ports: Ports, sees: Sight, path: Path | None) -> None:
        self._ports = ports
        self._word = OwnWord()
        self.elector = Elector(self._sign, self._verify, sees, self._write)
        self._file: MarksFile | None = None
        self._boot, self._old = this_boot(), False
        """Whether the file that we found may lack what was signed last."""
        self._taken: set[int] = set()
        """Stages in which a seat of this process has begun."""
        if path is not None:
            self._load(path)

    def _load(self, path: Path) -> None:
        try:
            self._file = MarksFile(path)
            if (kept := self._file.read()) is not None:
                self._word = OwnWord(kept.marks)
                self._old = not self._boot or kept.boot != self._boot
                self.elector.load(kept.terms)
        except (OSError, DamagedFile) as error:
            self._old = True
            words = f"what this volunteer signed before cannot be read, going on without: {error}"
            self._ports.perform(Explain("membership", words, "warning"))

    def resume(self, era: int) -> None:
        """This home goes on in a lineage; an old file may not know how our elector voted there."""
        if self._old:
            self.elector.bar(era)

    def _sign(self, kind: str, body: bytes) -> bytes:
        if kind == READY and not self._may_say(kind, parse_statement(body)):
            return b""
        return self._ports.sign(kind, body).signature

    def _verify(self, peer: PeerId, kind: str, body: bytes, signature: bytes) -> bool:
        try:
            verify(Envelope(peer, kind, body, signature), self._ports.swarm)
        except RemoteProtocolError:
            return False
        return True

    def promised(self, stage: int, era: int, step: int) -> tuple[int, int]:
        """Return step and attempt up to which we may have signed in a stage and lineage, which
        begins at ``step``."""
        promise = self._word.promise(stage, era)
        if self._old and stage not in self._taken:
            promise = max(promise, (step, LEFT_OUT))
        self._taken.add(stage)
        return promise

    def signed(self, message: Said) -> Said | None:
        """Return the message with its signature; None: it would contradict what we have signed, and
        is not sent. A Ready, and a commitment that an auditor asks for, have theirs already."""
        if message.signature:
            return message
        kind, statement = statement_of(message)
        if not self._may_say(kind, statement):
            return None
        signed = self._ports.sign(kind, encode_statement(statement))
        return replace(message, signature=signed.signature)

    def _may_say(self, kind: str, statement: Statement) -> bool:
        is_new = self._word.is_new(kind, statement)
        if self._word.may_say(kind, statement):
            if is_new:
                self._write()
            return True
        where = f"step {statement.step}, attempt {statement.attempt}"
        words = f"our {kind} of {where} is not sent: we have signed another one"
        self._ports.perform(Explain("round", words, "warning"))
        return False

    def _write(self) -> None:
        if self._file is None:
            return
        try:
            self._file.write(Kept(list(self._word.marks), self._boot, list(self.elector.terms)))
        except OSError as error:  # a full disk must not stop training
            self._file.spoil()
            self._file = None
            words = f"what this volunteer signs cannot be written down: {error.strerror}"
            self._ports.perform(Explain("membership", words, "warning"))
