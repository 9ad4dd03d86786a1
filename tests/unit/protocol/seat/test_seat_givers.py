"""What replicas beside us gave us is compared with what they have committed to."""

from types import SimpleNamespace

import pytest

from protocol.audit.audit import ASK_AGAIN_S, PATIENCE_S
from protocol.audit.charges import Charges
from protocol.audit.commitment import contents, root_of
from protocol.audit.terms import AuditTerms
from protocol.effects import Explain, Send
from protocol.ids import PeerId
from protocol.pace import LOOK_S
from protocol.pipeline.place import Place
from protocol.seat.givers import MOST_UNLISTED, NEWEST, Givers
from protocol.view import Replica, SwarmView
from protocol.wire.messages import AuditReply, AuditRequest, Commitment, Statements
from tests.support.protocol_examples import SWARM, peer, stated_by

ME, GIVER, SIBLING, AFTER, LAST = (peer(n) for n in (1, 2, 3, 4, 5))
STAGE, STAGES, STEP = 1, 3, 7
IDS = (28, 29, 30, 31)


def digest(*of: object) -> bytes:
    return root_of(repr(of).encode())


def view(*, step: int = STEP + 1, alone: bool = False) -> SwarmView:
    before = [] if alone else [Replica(SIBLING, step, serving=True)]
    return SwarmView(
        (
            (Replica(GIVER, step, serving=True), *before),
            (Replica(ME, step, serving=True),),
            (Replica(AFTER, step, serving=True), Replica(LAST, step, serving=True)),
        )
    )


class Line:
    """A replica of the middle stage, and one beside it that gives it tensors."""

    def __init__(self, giver: tuple[int, PeerId] = (0, GIVER)) -> None:
        terms = AuditTerms(0.1, bytes(32), charges=Charges(SWARM))
        self.aside: list[tuple[int, PeerId]] = []
        self.standing = SimpleNamespace(view=view(), set_aside=self._set_aside)
        self.givers = Givers(Place(ME, STAGE, STAGES, 4), self.standing, terms)
        self.giver, self.step, self.now = giver, STEP, 0.0

    def given(self, ids: tuple[int, ...] = IDS) -> dict[int, bytes]:
        if self.giver[0] > STAGE:
            return {m: digest("grad_out", m) for m in ids}
        return {m: digest("tokens", m) + digest("output", m) for m in ids}

    def close(self, ids: tuple[int, ...] = IDS) -> list[Send]:
        """A step is closed with what the giver gave, and the giver has closed it."""
        self.givers.closed(self.step, {self.giver: self.given(ids)})
        return self.see(view(step=self.step + 1), self.now)

    def _set_aside(self, peer: PeerId, stage: int, why: str, now: float) -> list[Explain]:
        self.aside.append((stage, peer))
        return []

    def see(self, seen: SwarmView, now: float) -> list[Send]:
        self.standing.view = seen
        return self.givers.look(now)

    def listed(self, ids: tuple[int, ...] = IDS, changed: str = "") -> bytes:
        names = ("grad_in", "tokens", "output")
        if self.giver[0] > STAGE:
            names = ("input", "tokens", "grad_out")
        rows = {
            m: tuple(digest(name, m, *(["other"] if name == changed else [])) for name in names)
            for m in ids
        }
        return contents(rows)

    def reply(
        self, encoded: bytes, *, root: bytes = b"", author: int | None = None
    ) -> list[Send | Explain]:
        stage, of = self.giver
        said = Commitment(stage, self.step, 3, root or root_of(encoded))
        number = author or (2 if of == GIVER else 4)
        message = AuditReply(STAGE, self.step, 3, "list", 0, said=stated_by(number, said))
        return self.givers.on_list(of, message, encoded, self.now)

    def compare(self, encoded: bytes, ids: tuple[int, ...] = IDS) -> list[tuple[int, PeerId]]:
        """Close the next step, and compare what was given with a list; return who is set aside."""
        self.step += 1
        assert self.close(ids)
        self.reply(encoded)
        return self.aside


@pytest.mark.parametrize("giver", [(0, GIVER), (2, AFTER)])
def test_an_honest_giver_is_asked_and_borne_out(giver: tuple[int, PeerId]) -> None:
    line = Line(giver)
    assert line.reply(line.listed()) == [], "it was not asked for"
    [ask] = line.close()
    assert ask == Send(giver[1], AuditRequest(giver[0], STEP, 0, "list", 0, beside=STAGE))
    [told] = line.reply(line.listed())
    assert told.peer == (SIBLING if giver[1] == GIVER else LAST), "a sibling compares, too"
    assert isinstance(told.message, Statements)
    assert line.givers._open is None


@pytest.mark.parametrize(
    ("giver", "changed"),
    [((0, GIVER), "output"), ((0, GIVER), "tokens"), ((2, AFTER), "grad_out")],
)
def test_who_gave_another_tensor_than_it_lists_is_set_aside(
    giver: tuple[int, PeerId], changed: str
) -> None:
    line = Line(giver)
    assert not line.compare(line.listed())
    assert line.compare(line.listed(changed=changed)) == [giver]


def test_what_is_not_listed_counts_against_a_giver_only_if_it_is_most_of_it_and_often() -> None:
    line = Line()
    for _ in range(NEWEST):
        assert not line.compare(line.listed(IDS[:2])), "half of it is counted elsewhere"
    for _ in range(MOST_UNLISTED):
        assert not line.compare(line.listed(IDS[:1]))
    assert line.compare(line.listed(IDS[:1]))


@pytest.mark.parametrize("fault", ["another list", "unsigned", "malformed"])
def test_a_list_counts_only_as_its_author_has_signed_it(fault: str) -> None:
    line = Line()
    line.close()
    if fault == "unsigned":
        assert not line.reply(line.listed(), author=3)
        assert line.givers._open is not None, "it is still awaited"
        return
    for _ in range(MOST_UNLISTED + 1):
        encoded = b"\xc1" if fault == "malformed" else line.listed()
        line.reply(encoded, root=b"" if fault == "malformed" else digest("else"))
        line.step += 1
        line.close()
    assert line.aside


def test_a_silent_giver_is_asked_again_and_then_counts_as_one_that_lists_nothing() -> None:
    line, asked = Line(), 0
    for _ in range(MOST_UNLISTED + 1):
        asked += len(line.close())
        end = line.now + PATIENCE_S
        while line.givers._open is not None:
            line.now += LOOK_S
            found = line.givers.tick(line.now)
            asked += sum(isinstance(each, Send) for each in found)
        assert line.now < end + ASK_AGAIN_S
        line.step += 1
    assert line.aside == [line.giver]
    assert asked == (MOST_UNLISTED + 1) * 4


def test_nobody_is_asked_before_it_has_closed_the_step_nor_once_it_has_gone() -> None:
    line = Line()
    line.givers.closed(STEP, {line.giver: line.given()})
    assert not line.see(view(step=STEP), 0.0)
    assert line.see(view(step=STEP + 1), 0.1)
    line.reply(line.listed())
    line.givers.closed(STEP + 1, {line.giver: line.given()})
    assert not line.see(view(alone=True), 0.2), "one alone commits to nothing"
    assert line.givers._open is None
