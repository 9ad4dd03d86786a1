"""The founder's amendments in the form of the control socket's answers. Pure."""

from typing import Final

from client.control.snapshot import Amended, AmendmentView
from model_zoo.specs.optimizer import learning_rate
from protocol.amendments.amendment import Amendment
from protocol.amendments.book import Amendments
from protocol.amendments.words import describe

ONLY_THE_FOUNDER: Final = "only the founder of this swarm, {}, can change its run"
POINTS: Final = 5
"""Steps for which the learning rate is shown as it was to be and as it will be."""


def amendment_views(book: Amendments) -> list[AmendmentView]:
    """Return the amendments that count, in order."""
    return [_view(one.amendment, book) for one in book.counting]


def amended(book: Amendments, said: Amendment, done: int, *, signed: bool) -> Amended:
    """Return what an amendment changes that is about to be signed, or was just now.

    Args:
        book: the amendments that are known, with or without it.
        said: the amendment.
        done: steps that the run has done.
        signed: whether it was signed.
    """
    earliest = max(said.from_step, done)
    steps, optimizer = book.before(said.number)
    last = max(said.steps - 1, 0)
    shown = {min(max(step, 0), last) for step in (done, earliest, steps - 1, last)}
    shown |= {earliest + (last - earliest) * part // POINTS for part in range(1, POINTS)}
    rates = [
        (
            step,
            learning_rate(optimizer, step),
            learning_rate(said.optimizer if step >= earliest else optimizer, step),
        )
        for step in sorted(shown)
        if done <= step <= last
    ]
    return Amended(
        amendment=_view(said, book), step=done, rates=rates, earliest=earliest, signed=signed
    )


def _view(said: Amendment, book: Amendments) -> AmendmentView:
    return AmendmentView(
        number=said.number,
        words=describe(said, *book.before(said.number)),
        steps=said.steps,
        from_step=said.from_step,
    )
