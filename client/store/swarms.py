"""The swarms this volunteer has joined: signed manifest, invite, and members met, one file each.

The files are ``.swarm`` files, and reading verifies them like any other.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from client.store.atomic import write_atomic
from protocol.address import Address, by_peer
from protocol.errors import ProtocolError
from protocol.ids import SwarmId
from protocol.invite import MAX_PEERS, MAX_SWARM_FILE_CHARS, SwarmFile, parse_swarm_file

SUFFIX: Final = ".swarm"
MAX_OF_ONE: Final = 4
"""Addresses remembered of one member: as many as are dialled."""
_NAME = re.compile(r"[0-9a-f]{64}")


class SwarmStore:
    """A ``folder`` of remembered swarms; raises ``OSError`` where the disk does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def remember(self, swarm: SwarmFile) -> None:
        """Store a swarm; members met earlier are kept after the present ones."""
        known = self.load(swarm.swarm)
        if known is not None:
            peers = _merged(swarm.peers, known.peers)
            swarm = replace(swarm, peers=peers, ticket=swarm.ticket or known.ticket)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(self._path(swarm.swarm), str(swarm).encode())

    def meet(self, swarm: SwarmId, peers: Iterable[Address]) -> None:
        """Remember members that answered, newest first; does nothing for an unknown swarm."""
        known = self.load(swarm)
        if known is None:
            return
        merged = _merged(tuple(peers), known.peers)
        if merged != known.peers:
            write_atomic(self._path(swarm), str(replace(known, peers=merged)).encode())

    def load(self, swarm: SwarmId) -> SwarmFile | None:
        """Return a swarm, or None if it is not remembered or its file is damaged."""
        if not _NAME.fullmatch(swarm):
            return None
        try:
            with self._path(swarm).open(encoding="utf-8") as file:
                found = parse_swarm_file(file.read(MAX_SWARM_FILE_CHARS + 1))
        except (FileNotFoundError, UnicodeDecodeError, ProtocolError):
            return None
        return found if found.swarm == swarm else None

    def all(self) -> list[SwarmFile]:
        """Return every stored swarm with a valid file, sorted by id; one that the disk does not
        give does not hide the others."""
        found = []
        for name in sorted(path.stem for path in self.folder.glob(f"*{SUFFIX}")):
            with suppress(OSError):
                found.append(self.load(SwarmId(name)))
        return [swarm for swarm in found if swarm is not None]

    def _path(self, swarm: SwarmId) -> Path:
        return self.folder / f"{swarm}{SUFFIX}"


def _merged(first: tuple[Address, ...], then: tuple[Address, ...]) -> tuple[Address, ...]:
    found = by_peer(dict.fromkeys(first + then)).values()
    return tuple(address for of_one in found for address in of_one[:MAX_OF_ONE])[:MAX_PEERS]
