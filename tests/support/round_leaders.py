"""A leader of a round with the reports and the votes that a test gives it."""

from __future__ import annotations

from msgspec.structs import replace

from protocol.decree.decree import agreed
from protocol.decree.elector import unsigned_elector
from protocol.effects import Effect, Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.place import Place
from protocol.rounds.leader import OwnPart, RoundLeader
from protocol.rounds.plans import REFUSED
from protocol.rounds.quorum import Quorum
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Commit, LedgerReport, Plan, Propose, Ready, Vote
from protocol.wire.parts import Decree

ME, B, C, NEW = sorted(peer_id_from_key(bytes([n]) * 32) for n in range(4))
STEP, PER_STEP, SIZE, STAGE = 2, 8, 1024, 1
IDS = frozenset(range(16, 24))
DIGEST = b"\7" * 32


def view(*peers: PeerId, version: int = STEP, **versions: int) -> SwarmView:
    """Serving replicas of our stage; ``B=1`` gives B another version than the rest."""
    names = {"ME": ME, "B": B, "C": C}
    others = {names[name]: v for name, v in versions.items()}
    ours = [Replica(peer, others.get(peer, version), True) for peer in peers]
    return SwarmView.of([[], ours])


class Led(RoundLeader):
    """A leader that is an elector of its step, too: that one answers at once."""

    def __init__(self, quorum: Quorum) -> None:
        self.own = OwnPart(ready=DIGEST)
        place = Place(ME, STAGE, 2, PER_STEP)
        super().__init__(place, SIZE, STEP, quorum, part=lambda: self.own)
        self.elector = unsigned_elector()
        before = Decree(1, DIGEST, (ME,), tuple(quorum.electors), 0.0)
        self.elector.take(Commit(STAGE, STEP - 1, 1, ME, before, ()), frozenset({ME}))

    def _answered(self, effects: list[Effect], now: float) -> list[Effect]:
        for asked in [e for e in effects if isinstance(e, Send) and e.peer == ME]:
            if isinstance(asked.message, Propose):
                answer = self.elector.answer(ME, asked.message)
                if isinstance(answer, Vote):
                    effects = [*effects, *self.vote(ME, answer, now)]
        return effects

    def report(self, sender: PeerId, message: LedgerReport, now: float) -> list[Effect]:
        return self._answered(super().report(sender, message, now), now)

    def vote(self, sender: PeerId, message: Vote, now: float) -> list[Effect]:
        return self._answered(super().vote(sender, message, now), now)

    def update_view(self, view: SwarmView, leading: bool, now: float) -> list[Effect]:
        return self._answered(super().update_view(view, leading, now), now)

    def tick(self, now: float) -> list[Effect]:
        return self._answered(super().tick(now), now)

    def ready(self, sender: PeerId, message: Ready, now: float) -> list[Effect]:
        """Take a Ready that names the digest of the sums alone; we are Ready for ``DIGEST``."""
        if self._plan is not None and message.digest != REFUSED:
            members = tuple(member.peer for member in self._plan.members)
            electors = tuple(self._plan.electors)
            decree = Decree(message.attempt, message.digest, members, electors, 0.0)
            message = replace(message, digest=agreed(decree))
        return self._answered(super().ready(sender, message, now), now)


def leader(*peers: PeerId, electors: tuple[PeerId, ...] = (ME,)) -> Led:
    """One whose siblings are these; the decree before names them all, and designates us."""
    quorum = Quorum(ME, STAGE, None)
    quorum.settle(peers, electors, STEP, 0.0)
    quorum.designated = ME
    made = Led(quorum)
    made.update_view(view(*peers), True, 0.0)
    return made


def report(
    done: object = (), *, seq: int = 1, step: int = STEP, promised: int = 0, in_flight: object = ()
) -> LedgerReport:
    bits = [to_bitmap(ids, step, PER_STEP) for ids in (done, in_flight)]
    return LedgerReport(STAGE, step, seq, bits[0], bits[1], promised)


def plans(effects: list[object]) -> dict[PeerId, Plan]:
    return {
        effect.peer: effect.message
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, Plan)
    }


def proposals(effects: list[object]) -> dict[PeerId, Propose]:
    return {
        effect.peer: effect.message
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, Propose)
    }


def commits(effects: list[object]) -> list[PeerId]:
    return [e.peer for e in effects if isinstance(e, Send) and isinstance(e.message, Commit)]


def planned(
    *shares: tuple[PeerId, object], electors: tuple[PeerId, ...] = (ME,)
) -> tuple[Led, Plan]:
    """A leader whose plan is out."""
    made = leader(*(peer for peer, _ in shares), electors=electors)
    effects: list[object] = []
    for peer, done in shares:
        effects += made.report(peer, report(done), 0.0)
    sent = plans(effects)
    assert set(sent) == {peer for peer, _ in shares}
    return made, sent[shares[0][0]]


HALVES = ((ME, range(16, 20)), (B, range(20, 24)))


def ready(attempt: int = 1, digest: bytes = DIGEST, loss: float = 1.5) -> Ready:
    return Ready(STAGE, STEP, attempt, digest, loss)


def vote(
    attempt: int = 1, promised: int = 0, *, voted: int = 0, decree: Decree | None = None
) -> Vote:
    """An elector's answer; ``promised``: a later attempt makes it a refusal."""
    signature = b"" if promised > attempt else bytes(64)
    said = (attempt, promised or attempt, voted, decree)
    return Vote(STAGE, STEP, *said, signature=signature)
