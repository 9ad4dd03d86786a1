"""Our own word: what we have signed, so that we never sign anything that contradicts it.

Rounds go forward: within a lineage steps rise, and within a step attempts rise. Of each kind, stage
and era the newest statement is kept. Something newer may be signed, the same again, and nothing
else; a message that is not sent is like one that was lost. The marks are written to disk before
what they mark is sent, so that they hold for the next process as well. State: the marks.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from protocol.evidence.statement import STATEMENTS
from protocol.wire.statement import Statement

MAX_MARKS: Final = 256
"""Three kinds of eight stages in eight lineages; the oldest is forgotten."""


class Mark(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The newest statement of one kind."""

    kind: str
    said: Statement


class OwnWord:
    """See the module's docstring; ``marks``: those of the process before."""

    def __init__(self, marks: Iterable[Mark] = ()) -> None:
        self._marks: dict[tuple[str, int, int], Mark] = {}
        for mark in marks:
            if mark.kind in STATEMENTS:
                self._put(mark)

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Everything that the next process has to know."""
        return tuple(self._marks.values())

    def is_new(self, kind: str, statement: Statement) -> bool:
        """Whether a statement is newer than all of its kind, so that it has to be marked."""
        last = self._marks.get((kind, statement.stage, statement.era))
        return last is None or _number(statement) > _number(last.said)

    def may_say(self, kind: str, statement: Statement) -> bool:
        """Whether a statement contradicts nothing that we have signed; mark it if it is new."""
        if self.is_new(kind, statement):
            self._put(Mark(kind, statement))
            return True
        return self._marks[kind, statement.stage, statement.era].said == statement

    def promise(self, stage: int, era: int) -> tuple[int, int]:
        """Return step and attempt of the newest statement in a stage and lineage: a seat that is
        opened there follows and plans later attempts only."""
        said = (self._marks.get((kind, stage, era)) for kind in STATEMENTS)
        return max((_number(mark.said) for mark in said if mark is not None), default=(0, 0))

    def _put(self, mark: Mark) -> None:
        key = mark.kind, mark.said.stage, mark.said.era
        self._marks.pop(key, None)
        if len(self._marks) >= MAX_MARKS:
            del self._marks[next(iter(self._marks))]
        self._marks[key] = mark


def _number(statement: Statement) -> tuple[int, int]:
    return statement.step, statement.attempt
