"""Searches for members with the training data while this machine does not have them all.

A volunteer without the data asks the members that it is linked with. Members with data answer with
an offer; adverts are not trusted. Stage 0 can be taken while a member offers data. While no member
offers any, the owner is told what to do, in the same words everywhere.
"""

import math
from collections.abc import Callable

from client.train.ports import Ports
from model_zoo.specs.data import DataSpec
from protocol.effects import Explain
from protocol.ids import PeerId, Stage, short
from protocol.wire.messages import Chunk, ChunkRequest

ASK_AGAIN_S = 5.0
"""Seconds between questions to all members while nobody offers it; after the first the owner is
told."""
MOST_DONORS = 4
"""Offers beside which newcomers are not asked for more."""


class DataSearch:
    """See the module's docstring.

    Args:
        changed: called when what ``unable`` says may have changed.
    """

    def __init__(self, ports: Ports, data: DataSpec, changed: Callable[[], None]) -> None:
        self._ports, self._data, self._changed = ports, data, changed
        self._question = ChunkRequest(bytes.fromhex(data.digest), None)
        self._offers: set[PeerId] = set()
        self._supplied = self._starved = False
        self.missing = False
        """Whether this machine does not have all data."""
        self._ask_at = math.inf
        self._told = False

    # --- what follows -----------------------------------------------------------------------

    @property
    def problem(self) -> str:
        """The problem in words for the owner; empty if the data are found or the search
        continues."""
        missing = self._starved or (self._told and not self._supplied)
        return _words(self._data) if missing else ""

    @property
    def starved(self) -> bool:
        """Whether stage 0 is held here and lacks data that no member gives."""
        return self._starved

    @property
    def offering(self) -> frozenset[PeerId]:
        """The members that offer it."""
        return frozenset(self._offers)

    def unable(self) -> dict[Stage, str]:
        """Return the stage that cannot be taken without the data, with the reason."""
        if not self.missing or self._supplied or self._offers:
            return {}
        return {Stage(0): self.problem or "asking members for the training data"}

    # --- what happens -----------------------------------------------------------------------

    def found(self) -> None:
        """The data are here."""
        self._offers.clear()
        self.missing, self._ask_at, self._told = False, math.inf, False
        self._changed()

    def lacks(self) -> None:
        """The data are not here: ask the members for them."""
        if not self.missing:
            self.missing = True
            self._ask()
            self._changed()

    def supplied(self, fetching: bool, *, starved: bool) -> None:
        """Stage 0 fetches data as it needs them, or does not; ``starved``: no member gives them."""
        if (self._supplied, self._starved) == (fetching and not starved, starved):
            return
        if starved and not self._starved:
            self._ports.perform(Explain("transfer", _words(self._data), "warning"))
        self._supplied, self._starved = fetching and not starved, starved
        self._changed()

    def linked(self, peer: PeerId) -> None:
        """A member has come."""
        if self.missing and len(self._offers) < MOST_DONORS:
            self._ports.send(peer, self._question)

    def lost(self, peer: PeerId) -> None:
        """A member is gone, or gives nothing although it has offered the data."""
        if peer in self._offers:
            self._offers.discard(peer)
            if not self._offers:
                self._ask_at = self._ports.now() + ASK_AGAIN_S
            self._changed()

    def concerns(self, message: Chunk) -> bool:
        """Whether a member says if it has any of the data, which are asked for."""
        return self.missing and (message.root, message.index) == (self._question.root, None)

    def receive(self, peer: PeerId, message: Chunk, payload: bytes = b"") -> None:
        """Take a member's offer of data, or its refusal."""
        if not payload:
            self.lost(peer)
        elif peer not in self._offers:
            self._offered(peer)

    def tick(self, now: float) -> None:
        """Ask again while nobody offers the data."""
        if self._ask_at <= now:
            self._tell()
            self._ask()
            self._changed()

    def next_deadline(self) -> float:
        """Return when ``tick`` has something to do."""
        return self._ask_at

    # --- inside -----------------------------------------------------------------------------

    def _ask(self) -> None:
        self._ask_at = self._ports.now() + ASK_AGAIN_S
        for peer in sorted(self._ports.linked()):
            self._ports.send(peer, self._question)

    def _offered(self, peer: PeerId) -> None:
        self._offers.add(peer)
        self._ask_at = math.inf
        if self._told:
            self._told = False
            words = f"{short(peer)} has training data"
            self._ports.perform(Explain("transfer", words, members=(peer,)))
        self._changed()

    def _tell(self) -> None:
        if not self._told and not self._supplied:
            self._told = True
            self._ports.perform(Explain("transfer", _words(self._data), "warning"))


def _words(data: DataSpec) -> str:
    """Say what is missing and what to do; the first words fit a narrow screen."""
    return (
        f"the training data {data.name} are missing: join with --data FOLDER, or wait for a member "
        f"who has them ({data.kept_bytes / 1e6:.1f} MB, root begins with {data.digest[:12]})"
    )
