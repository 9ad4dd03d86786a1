"""Drives the waypoints of our swarm: signs, spreads, keeps them on disk, and shows newcomers ours.

``protocol.waypoints`` decides what is signed and what is certified.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from client.store.persisted import Persisted
from client.store.records import KeptChain
from client.train.ports import Ports
from client.train.recovery.history import History
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.membership.view import RecordChanged
from protocol.pipeline.effects import Committed
from protocol.view import SwarmView
from protocol.waypoints.chain import Waypoint, encode_chain, parse_chain
from protocol.waypoints.machine import WaypointEffect, Waypoints
from protocol.waypoints.part import PART, encode_part
from protocol.wire.messages import WaypointChain


class WaypointDriver:
    """See the module's docstring.

    Args:
        history: that of the run; None while we only look on. It begins with the chain of the file
            where it has seen nothing itself.
        path: of the file; None: nothing is kept.
    """

    def __init__(
        self, ports: Ports, history: Callable[[], History | None], path: Path | None
    ) -> None:
        self._ports, self._history = ports, history
        self._file = Persisted(path, KeptChain, ports.warn)
        manifest = ports.manifest
        self.machine = Waypoints(
            ports.me,
            PeerId(manifest.founder),
            manifest.stage_count,
            manifest.policy.checkpoint_every,
            ports.amendments.longest,
            ports.swarm,
            lambda part: ports.sign(PART, encode_part(part)).signature,
            self._proves,
        )
        found = self._file.load() or KeptChain()
        try:
            self._perform(self.machine.restore(found.links))
        except RemoteProtocolError as error:
            self._ports.warn(f"the chain of waypoints cannot be used, going on without it: {error}")

    def link_up(self, peer: PeerId) -> None:
        """Show a new link our chain."""
        if chain := self.machine.chain:
            self._ports.send(peer, WaypointChain(), encode_chain(chain))

    def shown(self, peer: PeerId, message: WaypointChain, payload: bytes) -> None:
        """Take the chain that a peer shows.

        Raises:
            RemoteProtocolError: it is malformed, or does not lead from the manifest to a version.
        """
        chain = parse_chain(payload)
        self._perform(self.machine.shown(peer, chain, self._ports.now()))

    def record(self, record: RecordChanged) -> None:
        """Handle a member's record of what it has signed, or its expiry. Raises
        RemoteProtocolError: a part with a bad signature."""
        if record.said is None:
            self.machine.forget(record.signer)
        else:
            self._perform(self.machine.receive(record.signer, record.said))

    def closed(self, committed: Committed) -> None:
        made = committed.stage, committed.era, committed.version, bytes.fromhex(committed.hash)
        self._perform(self.machine.closed(*made, committed.roll))

    def update(self, era: int, view: SwarmView) -> None:
        stages = range(self._ports.manifest.stage_count)
        serving = [[r.peer for r in view.serving(stage)] for stage in stages]
        self._perform(self.machine.update(era, serving))

    def _proves(self, peer: PeerId) -> bool:
        history = self._history()
        return history is not None and history.machine.evidence.proves(peer)

    def _perform(self, effects: Sequence[WaypointEffect]) -> None:
        for effect in effects:
            match effect:
                case Waypoint():
                    self._file.keep(KeptChain(tuple(self.machine.chain)))
                    if (history := self._history()) is not None:
                        history.certified(effect)
                case _:
                    self._ports.perform(effect)
