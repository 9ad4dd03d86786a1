"""The amendments of a world that has no founder."""

from protocol.amendments.book import Amendments


class Unamended(Amendments):
    """None; a world may change how long its run is.

    Args:
        steps: of the run.
    """

    steps = 0

    def __init__(self, steps: int) -> None:
        self.steps, self.counting = steps, ()
