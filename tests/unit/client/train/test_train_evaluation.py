"""Held-out losses of a swarm while it trains: exact, of a named version, and in nobody's way."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from client.events import VersionEvaluated
from client.lab.reference import evaluate, train_reference
from model_zoo.datasets.build import build
from model_zoo.stages import build_whole, load_whole
from protocol.manifest import encode_manifest
from protocol.seat.effects import HeldOutLoss, SeatNews
from tests.support.cases import usual
from tests.support.texts import corpus_of
from tests.support.train_swarm import ADVERT, TestSwarm, Volunteer, open_swarm

STEPS, EVERY = 6, 2
DUE = (0, 2, 4, 6)


def expected(swarm: TestSwarm, version: int) -> float:
    """What the single-process trainer's model of a version loses on the same windows."""
    manifest, corpus = swarm.manifest, corpus_of(str(swarm.data))
    if version:
        state = train_reference(replace(manifest, steps=version), corpus, threads=1).state
        model = load_whole(manifest.model, state)
    else:
        model = build_whole(manifest.model, manifest.seed)
    return evaluate(
        model,
        corpus,
        batches=manifest.evaluation.microbatches,
        sequences=manifest.sequences_per_microbatch,
        context=manifest.model.context,
    )


def found(volunteer: Volunteer) -> dict[int, VersionEvaluated]:
    """What a volunteer shows of each version, the newest that it said of it."""
    return {
        event.version: event for event in volunteer.events if isinstance(event, VersionEvaluated)
    }


async def trained(swarm: TestSwarm, stages: tuple[int, ...]) -> dict[int, VersionEvaluated]:
    """Train with a volunteer for each of these; return what all of them show."""
    volunteers = await swarm.staffed(*stages)
    await swarm.until_done()
    await swarm.until(lambda: all(swarm.manifest.steps in found(v) for v in volunteers))
    for other in volunteers[1:]:
        assert found(other).keys() == found(volunteers[0]).keys()
    return found(volunteers[0])


@pytest.mark.parametrize(
    ("stages", "held", "choices"),
    usual(
        2,
        [
            (1, (0,), {}),
            (2, (0, 1, 0, 1), {}),
            (2, (0, 1), {}),
            (3, (0, 1, 1, 2, 2, 0), {}),
        ],
    ),
)
async def test_it_is_what_the_reference_trainer_finds_of_that_version(
    tmp_path: Path, stages: int, held: tuple[int, ...], choices: dict[str, Any]
) -> None:
    how = {"stages": stages, "steps": STEPS, "evaluate_every": EVERY, **choices}
    async with open_swarm(tmp_path, **how) as swarm:
        shown = await trained(swarm, held)
        swarm.assert_exact()
        terms = swarm.manifest.evaluation
    assert set(shown) <= set(DUE)
    assert len(shown) > 1, "a version may be given up, the last one is not"
    for version, event in shown.items():
        reference = expected(swarm, version)
        assert event.loss == pytest.approx(reference, rel=1e-5)
        assert event.bits_per_byte == pytest.approx(reference / 0.693147, rel=1e-5)
        assert event.tokens == terms.tokens == terms.microbatches * 2 * 16


async def test_held_out_tokens_are_fetched_like_others(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("".join(f"{n}: the quick brown fox jumps\n" for n in range(55_000)))
    data = build([book], tmp_path / "tokens").path
    how = {"data": str(data), "evaluate_every": EVERY}
    async with open_swarm(tmp_path, steps=STEPS, **how) as swarm:
        founder = await swarm.add(1)
        await founder.held_stages.text_problem()
        founder.engine.describe(ADVERT)
        first = await swarm.add(0, text=False)
        await swarm.until_done()
        await swarm.until(lambda: STEPS in found(first))
        assert found(first)[STEPS].loss == pytest.approx(expected(swarm, STEPS), rel=1e-5)
        swarm.assert_exact()


async def test_nothing_is_evaluated_unless_the_founder_wants_it(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=2, evaluate_every=0) as swarm:
        volunteers = await swarm.staffed(0, 1)
        await swarm.until_done()
        assert swarm.manifest.evaluation is None
        assert b"evaluation" not in encode_manifest(swarm.manifest)
        assert not any(found(volunteer) for volunteer in volunteers)


async def test_a_lie_of_one_path_is_outvoted(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=STEPS, evaluate_every=STEPS, microbatches=8) as swarm:
        volunteers = [await swarm.add(stage) for stage in (0, 1, 0, 1, 0, 1)]
        liar = volunteers[1].engine
        tell = liar.seat_tells

        def lie(news: SeatNews) -> None:
            tell(HeldOutLoss(news.version, 0.25) if isinstance(news, HeldOutLoss) else news)

        liar.seat_tells = lie  # type: ignore[method-assign]
        await swarm.until_done()
        for volunteer in volunteers:
            await swarm.until(lambda v=volunteer: STEPS in found(v) and found(v)[STEPS].claims == 3)
        honest = expected(swarm, STEPS)
        for volunteer in volunteers:
            assert found(volunteer)[STEPS].loss == pytest.approx(honest, rel=1e-5)
            assert found(volunteer)[STEPS].vouchers == 2
