"""Why this volunteer trusts other members, who was expelled, and who was invited by whom."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from client.control.snapshot import AuditCounts, ExpelledView, InvitedMember, TrustView
from client.train.engine import Engine
from client.train.stage.held_stages import HeldStages
from protocol.audit.draw import PROVEN, UNPROVEN
from protocol.audit.record import Grade, Record
from protocol.audit.terms import AuditTerms
from protocol.ids import PeerId, short
from protocol.vouching.register import Register
from protocol.wire.parts import Proof

Standing = Literal["proven", "probation", "unproven", "aside", "charged", "expelled"]
MAX_SHOWN = 256
"""Members with nothing to their name: anybody can invent thousands."""


def expelled(engine: Engine) -> list[ExpelledView]:
    kept = [verdict for verdict in engine.membership.verdicts if verdict.certificate is not None]
    return [
        *(
            ExpelledView(
                peer=one.culprit,
                reason=one.words,
                by="contradiction" if isinstance(one.certificate, Proof) else "charges",
            )
            for one in kept
        ),
        *_taken_back(_register(engine)),
    ]


def trust_of(engine: Engine, held_stages: HeldStages) -> list[TrustView]:
    """Return what is known of every member that has anything to its name."""
    known = _Known(engine, held_stages)
    me = engine.signer.peer
    holders = {r.peer: None for stage in held_stages.view.stages for r in stage}
    new = [peer for peer in holders if peer not in known.audited]
    peers = dict.fromkeys([*known.out, *known.charged, *known.audited, *known.invited, *new])
    return [known.of(peer) for peer in [p for p in peers if p != me][: 4 * MAX_SHOWN]]


def audit_counts(records: Iterable[Record]) -> AuditCounts:
    """Return what our audits of members came to."""
    found = sum((record.results for record in records), Counter[Grade | None]())
    agree, unchecked = found[Grade.AGREES], found[None]
    disagree = found.total() - agree - unchecked
    return AuditCounts(agree=agree, disagree=disagree, unchecked=unchecked)


def _register(engine: Engine) -> Register | None:
    """Return the register of members; None: members do not vouch for each other."""
    vouching = engine.handshake.vouching
    return None if vouching is None else vouching.register


def _taken_back(register: Register | None) -> list[ExpelledView]:
    """Return the members that somebody who answers for them has expelled."""
    found = list[ExpelledView]()
    if register is None:
        return found
    for peer in register.known():
        if (entry := register.why_out(peer)) is None:
            continue
        through = "" if entry.said.member == peer else f", which had invited {short(peer)}"
        reason = f": {entry.said.reason}" if entry.said.reason else ""
        who = short(PeerId(entry.said.member))
        words = f"{short(entry.by)} has expelled {who}{through}{reason}"
        found.append(ExpelledView(peer=peer, reason=words, by="inviter"))
    return found


def members_of(engine: Engine) -> list[InvitedMember] | None:
    """Return the members met and those expelled, as a tree: each below its inviter; None: members
    do not vouch for each other."""
    if (register := _register(engine)) is None:
        return None
    linked = engine.handshake.admitted | {engine.signer.peer}
    known = sorted(register.known()[: 4 * MAX_SHOWN], key=register.path)
    return [member_of(register, peer, linked=peer in linked) for peer in known]


def _above(register: Register, peer: PeerId) -> list[str]:
    """Return the members that answer for one, the founder first."""
    path = register.path(peer)
    return [register.founder, *path[:-1]] if path else []


def member_of(register: Register, peer: PeerId, *, linked: bool) -> InvitedMember:
    """Return who answers for a member, and whether it was expelled."""
    above, entry = _above(register, peer), register.why_out(peer)
    return InvitedMember(
        peer=peer,
        invited_by=above[-1] if above else "",
        depth=len(above),
        linked=linked,
        ours=register.may_expel(peer),
        expelled_by="" if entry is None else entry.by,
        reason="" if entry is None else entry.said.reason,
    )


class _Known:
    """All that is known of members, by member, at one moment."""

    def __init__(self, engine: Engine, held_stages: HeldStages) -> None:
        self._seats = [driver.seat for driver in held_stages.drivers()]
        self._history, self._is_new = engine.history, engine.membership.is_new
        self._register = _register(engine)
        self.out = {PeerId(one.peer): one.reason for one in expelled(engine)}
        terms = held_stages.audits or AuditTerms()
        self.charged = {peer: authors for (_, peer), authors in terms.open_charges().items()}
        self._records: dict[PeerId, list[Record]] = {}
        for (_, peer), record in terms.records.items():
            self._records.setdefault(peer, []).append(record)
        self.audited = [p for p, of in self._records.items() if any(one.results for one in of)]
        self.invited = self._register.known()[-MAX_SHOWN:] if self._register else []

    def of(self, peer: PeerId) -> TrustView:
        """Return why a member is trusted."""
        records, (standing, words) = self._records.get(peer, []), self._standing(peer)
        return TrustView(
            peer=peer,
            standing=standing,
            words=words,
            audits=audit_counts(records),
            fault=next((record.fault for record in records if record.fault), ""),
            invited_by=_above(self._register, peer) if self._register else [],
        )

    def _standing(self, peer: PeerId) -> tuple[Standing, str]:
        if peer in self.out:
            return "expelled", self.out[peer]
        if peer in self.charged:
            who = " and ".join(short(author) for author in self.charged[peer])
            return "charged", f"{who} {_has(self.charged[peer])} found it out, which is no majority"
        if stages := [seat.place.stage for seat in self._seats if seat.standing.is_aside(peer)]:
            where = f"stage {stages[0]}"
            return "aside", f"it obstructed {where} and is left out of it for a while"
        if self._history is not None and self._history.proves(peer):
            return "proven", f"steps that were closed here contain its work{self._audited(peer)}"
        if any(seat.quorum.names(peer) for seat in self._seats):
            return "proven", f"the last step was planned with it{self._audited(peer)}"
        if not self._is_new(peer):
            return "unproven", "no step was closed here yet, so everybody counts"
        lacks = "no step that was closed here contains its work; one is enough"
        waits = any(seat.standing.waits(peer) for seat in self._seats)
        return "probation", f"{lacks}; others are tried before it" if waits else lacks

    def _audited(self, peer: PeerId) -> str:
        """Say how often our audits draw a member of our stages, and what is missing to the next
        rate; empty: they do not draw it."""
        agreed = [record.agreed for record in self._records.get(peer, ())]
        if not agreed:
            return ""
        if max(agreed) >= PROVEN:
            return "; audited half as often as others"
        if max(agreed) >= UNPROVEN:
            return f"; {max(agreed)} of {PROVEN} audits until it is audited half as often"
        return f"; {max(agreed)} of {UNPROVEN} audits until it is new no more"


def _has(authors: Sequence[PeerId]) -> str:
    return "has" if len(authors) == 1 else "have"
