"""Properties 6 and 8: silence at rest, bounded messages per event, proposals that make sense."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from protocol.effects import Explain, Send
from protocol.ids import PeerId, Stage
from protocol.matching.board import Notice
from protocol.matching.effects import Assign, Unassign
from protocol.matching.seat import Bid
from protocol.wire import letters
from protocol.wire.messages import Letter
from tests.support.matching_examples import manifest, member
from tests.support.matching_world import CALM, STORMY, Design, Weather, World, is_renewal, swarm

SIZES = (8, 16, 32)
STAGES = 4
WINDOW_S = 90.0


def resting(count: int, seed: int) -> World:
    """Return a swarm of equals with the full design, long after its last event."""
    world = swarm([1.0] * count, STAGES, seed)
    world.run(450)
    return world


def test_silence_at_rest_with_the_full_design() -> None:
    """Only renewals, their answers and repeated postings; each a bounded number of times."""
    for count in SIZES:
        world = resting(count, 1)
        before, began = Counter(world.sent), len(world.log)
        world.run(60)
        sent = world.sent - before
        assert set(sent) <= {"renewal", "hold", "posting"}, f"{count} volunteers: {sent}"
        assert sent["renewal"] <= count * 5
        assert sent["hold"] <= count * 5
        assert sent["posting"] <= STAGES * 4
        said = [e for _, _, e in world.log[began:] if isinstance(e, Explain | Assign | Unassign)]
        assert said == [], f"{count} volunteers"


def join(world: World) -> None:
    world.join(member(9999, measured_s=1000.0))


def crash(world: World) -> None:
    world.crash(sorted(world.machines)[0])


def lose(world: World) -> None:
    world.lose(sorted(world.machines)[0], "the worker ran out of memory")


def extra_per_member(count: int, event: Callable[[World], None], seed: int) -> float:
    """Return the letters and records that an event costs beyond rest, per member."""
    calm, eventful = resting(count, seed), resting(count, seed)
    event(eventful)
    for world in (calm, eventful):
        world.run(WINDOW_S)
    return (eventful.sent.total() - calm.sent.total()) / count


@pytest.mark.parametrize("event", [join, crash, lose])
def test_messages_per_member_and_event_do_not_grow_with_the_swarm(
    event: Callable[[World], None],
) -> None:
    costs = [extra_per_member(n, event, seed=1) for n in SIZES]
    assert max(costs) <= 20.0
    assert costs[-1] <= max(costs[0], costs[1]) + 1.0


# --- property 8 -------------------------------------------------------------------------------


class AskingWorld(World):
    """Notes every proposal with what its sender had heard of the stage."""

    asked: list[tuple[PeerId, Bid, Notice, int]]
    """(who, for which place, what it had heard of the stage, its score)"""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.asked = []

    def _perform(self, who: PeerId, effects: Sequence[object]) -> None:
        for effect in effects:
            letter = effect.message if isinstance(effect, Send) else None
            asks = isinstance(letter, Letter) and isinstance(letter.body, letters.Propose)
            if asks and not is_renewal(letter):
                body = letter.body
                assert isinstance(body, letters.Propose)
                if body.seat:
                    continue  # a second seat displaces nobody: no cutoff applies to it
                machine = self.machines[who]
                notice = machine.context.board.notices(self.now).get(Stage(body.stage))
                bid = machine.seats.home.bid
                if notice is None or bid is None or bid.stage != body.stage:
                    continue  # asked again while its steward is being replaced
                view = self.population(self.views[who].values())
                score = view.score(who, Stage(body.stage), notice.posting.fair)
                self.asked.append((who, bid, notice, score))
        super()._perform(who, effects)


@pytest.mark.parametrize("weather", [CALM, STORMY], ids=["calm", "stormy"])
def test_proposals_are_bounded_not_repeated_and_never_hopeless(weather: Weather) -> None:
    """Per epoch of a stage each volunteer asks once, and only above the cutoff it has heard of;
    so an epoch of all stages has at most n S proposals."""
    asked = 0
    for seed in range(8):
        world = AskingWorld(manifest(STAGES), seed, weather, Design(moves=False))
        for number in range(14):
            speed = world.random.lognormvariate(0, 0.8) * 1e9
            who = member(seed * 100 + number, speed, measured_s=1000.0)
            world.join(who, at=world.random.uniform(0, 3))
        world.run(60)
        first: dict[tuple[PeerId, int], Notice] = {}
        for who, bid, heard, score in world.asked:
            if first.setdefault((who, bid.since_ms), heard) is heard:
                assert score > heard.posting.cutoff, (
                    f"seed {seed}: {who} asks below a cutoff it knows"
                )
        per_epoch = Counter(
            (who, n.posting.stage, n.source, n.posting.epoch) for (who, _), n in first.items()
        )
        assert max(per_epoch.values()) == 1, f"seed {seed}: {per_epoch.most_common(2)}"
        asked += len(first)
    assert asked > 8 * 14
