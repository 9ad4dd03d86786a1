"""Makes, keeps and shows waypoints: versions of the run that a newcomer can check alone.

Every so many steps each replica signs its stage's part, and the part of a neighbouring stage once
most of the replicas that it has worked with there state the same. The parts spread as records, so
every member puts the links together itself. The chain is sent to each new link. It is kept as short
as it can be: a new link follows the oldest one whose witnesses have signed it, and the founder
alone only where no other does.

    parts of all stages signed by enough witnesses -> link -> chain -> newcomers

State: signed parts by author, our own, the chain, and the allowance of each peer.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final

from protocol.effects import Publish
from protocol.ids import PeerId, SwarmId
from protocol.limits import MAX_CERTIFIED_STAGES
from protocol.token_bucket import Rate, TokenBuckets
from protocol.waypoints.chain import (
    MAX_LINKS,
    Waypoint,
    beginning,
    check_link,
    is_certified,
    order_of,
    waypoint_of,
)
from protocol.waypoints.part import (
    WAYPOINT,
    Part,
    SaidParts,
    SignedPart,
    encode_part,
    parse_part,
    part_of,
    spacing,
)
from protocol.wire.envelope import verify
from protocol.wire.parts import CertifiedPart, WaypointLink

KEPT_VERSIONS: Final = 2
"""Of each author and stage: a faster stage may be at the next waypoint already."""
BROUGHT: Final = Rate(0.1, MAX_LINKS)
"""Links that a peer may bring which we do not know; verifying them costs time."""
MAX_BRINGERS: Final = 1024

Sign = Callable[[Part], bytes]
"""Signs a part."""
Place = tuple[int, int]
"""Era and version."""


WaypointEffect = Publish | Waypoint
"""A waypoint: our chain has a new end; it is to be saved."""


class Waypoints:
    """See the module's docstring.

    Args:
        every: steps between two checkpoints.
        steps: of the whole run.
        proves: whether we have worked with a peer.
    """

    def __init__(
        self,
        me: PeerId,
        founder: PeerId,
        stages: int,
        every: int,
        steps: int,
        swarm: SwarmId,
        sign: Sign,
        proves: Callable[[PeerId], bool],
    ) -> None:
        self._me, self._stages, self._swarm = me, stages, swarm
        self.steps = steps
        """An amendment may change it."""
        self._every, self._sign, self._proves = spacing(every), sign, proves
        self._beginning = beginning(founder, stages)
        self._links: list[tuple[WaypointLink, Waypoint]] = []
        self._era = 0
        self._serving: tuple[tuple[PeerId, ...], ...] = ((),) * stages
        self._said: dict[PeerId, dict[tuple[int, int, int], SignedPart]] = {}
        """By author, ourselves included: its newest parts, verified, by stage, era and version."""
        self._allowance = TokenBuckets[PeerId](MAX_BRINGERS)

    @property
    def newest(self) -> Waypoint | None:
        """The end of our chain; None: there is no waypoint yet."""
        return self._links[-1][1] if self._links else None

    @property
    def chain(self) -> tuple[WaypointLink, ...]:
        """Our chain, to be kept and shown."""
        return tuple(link for link, _ in self._links)

    # --- inputs ------------------------------------------------------------------------------

    def restore(self, chain: Sequence[WaypointLink]) -> list[WaypointEffect]:
        """Take the chain of our disk; links that are ours already are not verified again.

        Raises:
            RemoteProtocolError: it does not lead from the manifest to a version (``check_link``).
        """
        pairs = takewhile(lambda pair: pair[0][0] == pair[1], zip(self._links, chain, strict=False))
        found = [ours for ours, _ in pairs]
        last = found[-1][1] if found else self._beginning
        for link in chain[len(found) :]:
            last = check_link(last, link, self._swarm, self._stages, self.steps)
            found.append((link, last))
        return self._adopt(found)

    def shown(
        self, peer: PeerId, chain: Sequence[WaypointLink], now: float
    ) -> list[WaypointEffect]:
        """Take the chain that a peer shows, if it has brought few links that we do not know.

        Raises:
            RemoteProtocolError: as ``restore``.
        """
        new = sum(link not in self.chain for link in chain)
        return self.restore(chain) if self._allowance.take({peer: BROUGHT}, now, new) else []

    def closed(
        self, stage: int, era: int, version: int, digest: bytes, roll: Sequence[PeerId]
    ) -> list[WaypointEffect]:
        """A seat of ours has made a version, with this hash, by a plan of these members: sign it if
        it is due."""
        due = version % self._every == 0 or version == self.steps
        if not due or not roll or self._stages > MAX_CERTIFIED_STAGES:
            return []
        part = part_of(stage, era, version, digest, roll, self._stages)
        return [*self._publish(self._signed(part)), *self._look()]

    def update(self, era: int, serving: Sequence[Sequence[PeerId]]) -> list[WaypointEffect]:
        """Take the present lineage and, by stage, its serving replicas."""
        now = tuple(tuple(peers) for peers in serving)
        if (era, now) == (self._era, self._serving):
            return []
        self._era, self._serving = era, now
        counts = self._counted()
        self._said = {author: said for author, said in self._said.items() if author in counts}
        return self._look()

    def receive(self, author: PeerId, said: SaidParts) -> list[WaypointEffect]:
        """Take another's record; one of somebody who is neither replica nor witness is ignored.

        Raises:
            RemoteProtocolError: a part with a bad signature.
        """
        if author == self._me or author not in self._counted():
            return []
        for one in said.parts:
            self._take(author, one)
        return self._look()

    def forget(self, author: PeerId) -> None:
        """A record expired, or its author is expelled."""
        if author != self._me:
            self._said.pop(author, None)

    def _counted(self) -> set[PeerId]:
        """Return the authors whose parts can matter: replicas, and the witnesses of our chain."""
        chain = (self._beginning, *(found for _, found in self._links))
        replicas = (peer for peers in self._serving for peer in peers)
        return {self._me, *replicas, *(peer for one in chain for peer in one.peers)}

    def _adopt(self, chain: Sequence[tuple[WaypointLink, Waypoint]]) -> list[WaypointEffect]:
        """Make a verified chain ours if it leads further."""
        if not chain or (self._links and chain[-1][1].order <= self._links[-1][1].order):
            return []
        self._links = list(chain)
        return [chain[-1][1]]

    # --- parts -------------------------------------------------------------------------------

    def _take(self, author: PeerId, one: SignedPart) -> None:
        """Keep a part that is new to us; of one version the first."""
        place = parse_part(one.body).place
        said = self._said.setdefault(author, {})
        if place in said:
            return
        verify(one.by(author), self._swarm)
        said[place] = one
        of_stage = sorted((p for p in said if p[0] == place[0]), key=lambda p: order_of(*p[1:]))
        for old in of_stage[:-KEPT_VERSIONS]:
            del said[old]

    def _signed(self, part: Part) -> list[SignedPart]:
        """Sign a part, if it is newer than what we have said of its stage."""
        mine = (at for at in self._said.get(self._me, ()) if at[0] == part.stage)
        if any(order_of(*at[1:]) >= _order(part) for at in mine):
            return []
        return [SignedPart(encode_part(part), self._sign(part))]

    def _publish(self, new: Sequence[SignedPart]) -> list[WaypointEffect]:
        """Say the newest part of each stage that we have signed."""
        for one in new:
            self._take(self._me, one)
        newest = {at[0]: one for at, one in self._said.get(self._me, {}).items()}
        said = SaidParts(tuple(one for _, one in sorted(newest.items())))
        return [Publish(WAYPOINT, said)] if new else []

    # --- looking -----------------------------------------------------------------------------

    def _look(self) -> list[WaypointEffect]:
        """Sign what others state of their stages, and add a link if one is complete."""
        said = [part for stage in self._duty() for part in self._seconded(stage)]
        return [*self._publish(said), *self._extend()]

    def _held(self) -> set[int]:
        return {stage for stage, peers in enumerate(self._serving) if self._me in peers}

    def _duty(self) -> list[int]:
        """Return the stages of others whose parts we sign: those beside ours, and those whose
        witness we are."""
        held, last = self._held(), self.newest or self._beginning
        beside = {stage + side for stage in held for side in (-1, 1)}
        witness = {s for s in range(self._stages) if self._me in last.witnesses(s)}
        return sorted((beside | witness) & set(range(self._stages)) - held)

    def _seconded(self, stage: int) -> list[SignedPart]:
        """Sign the newest part that most replicas of a stage state, of those that we have worked
        with. For the first waypoint the founder signs every stage; where it cannot have worked with
        any replica, all serving ones count."""
        far = self.newest is None and self._held().isdisjoint((stage - 1, stage + 1))
        known = [peer for peer in self._serving[stage] if far or self._proves(peer)]
        stated = Counter(
            one.body
            for peer in known
            for place, one in self._said.get(peer, {}).items()
            if place[:2] == (stage, self._era)
        )
        most = [parse_part(body) for body, count in stated.items() if 2 * count > len(known)]
        return self._signed(max(most, key=_order)) if most else []

    def _extend(self) -> list[WaypointEffect]:
        """Add the newest waypoint that is certified after a link of our chain."""
        for place in self._complete():
            for length, before in self._anchors(place):
                link = self._link_after(before, place)
                if link is not None and length < MAX_LINKS:
                    found = waypoint_of([parse_part(one.body) for one in link.parts])
                    return self._adopt([*self._links[:length], (link, found)])
        return []

    def _anchors(self, place: Place) -> list[tuple[int, Waypoint]]:
        """Return what a link to a version may follow, and its place in the chain. It follows the
        beginning only if there is no other link, or a whole waypoint was missed meanwhile: what the
        founder alone has signed is known sooner than what most have signed."""
        anchors = [(i + 1, at) for i, (_, at) in enumerate(self._links)]
        newest = self.newest
        if newest is None or place[1] >= newest.version + 2 * self._every:
            anchors.append((0, self._beginning))
        return anchors

    def _complete(self) -> list[Place]:
        """Return the versions later than our chain of which every stage has a part."""
        stages: dict[Place, set[int]] = {}
        for said in self._said.values():
            for stage, era, version in said:
                stages.setdefault((era, version), set()).add(stage)
        after = (self.newest or self._beginning).order
        whole = [at for at, of in stages.items() if len(of) == self._stages]
        later = [at for at in whole if order_of(*at) > after]
        return sorted(later, key=lambda at: order_of(*at), reverse=True)

    def _link_after(self, before: Waypoint, place: Place) -> WaypointLink | None:
        """Return the link to a version if the witnesses of a waypoint have signed all its parts."""
        parts = [self._certified(before, stage, place) for stage in range(self._stages)]
        whole = [part for part in parts if part is not None]
        return WaypointLink(tuple(whole)) if len(whole) == self._stages else None

    def _certified(self, before: Waypoint, stage: int, place: Place) -> CertifiedPart | None:
        bodies: dict[bytes, dict[PeerId, bytes]] = {}
        for who in sorted(before.witnesses(stage) & self._said.keys()):
            if (one := self._said[who].get((stage, *place))) is not None:
                bodies.setdefault(one.body, {})[who] = one.signature
        for body, signatures in bodies.items():
            if is_certified(before, stage, frozenset(signatures)):
                enough = len(before.witnesses(stage)) // 2 + 1
                return CertifiedPart(body, tuple(signatures.items())[:enough])
        return None


def _order(part: Part) -> tuple[int, int]:
    return order_of(part.era, part.version)
