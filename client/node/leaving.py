"""Whether the node may leave, or pause, while the disk does not take a state that nobody else has.

Whoever asks for it is refused, and told how to leave all the same. A signal, or the end of the run,
cannot be refused: what could not be saved is lost then, and said.
"""

from collections.abc import Callable
from typing import Final

from client.control.methods import Impossible
from client.errors import UserError
from client.train.stage.held_stages import HeldStages

UNSAVED: Final = "free space and try again; finish or pause with --discard leaves anyway"


class Leaving:
    """See the module's docstring.

    Args:
        stages: returns the node's stages.
    """

    def __init__(self, stages: Callable[[], HeldStages]) -> None:
        self._stages = stages
        self._asked = self._discards = False

    def ask(self, *, discard: bool) -> None:
        """The user wants to leave; with ``discard`` also if a state is lost by it.

        Raises:
            Impossible: one would be.
        """
        self.ask_pause(discard=discard)
        self._asked, self._discards = True, self._discards or discard

    def ask_pause(self, *, discard: bool) -> None:
        """The user wants to pause; as ``ask``."""
        if discard:
            self._stages().let_go.set()
        elif problem := self._stages().not_to_be_saved():
            raise Impossible(f"{problem}; {UNSAVED}")

    def begin(self) -> None:
        """The node leaves now. Unless the user asked for it, nobody may be there to make room."""
        if not self._asked:
            self._stages().let_go.set()

    def loss(self) -> UserError | None:
        """Return what was lost; None: nothing, or the user has agreed to it."""
        lost = self._stages().lost
        if self._discards or not lost:
            return None
        return UserError("; ".join(lost), "free space: the run goes on from an earlier version")
