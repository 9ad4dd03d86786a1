"""Local rounds made again: by as many replicas as in the run, each microbatch once."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from client.lab.chaos.ground import Ground, chaos_ground
from client.lab.chaos.retrace import Rounds, losses
from client.lab.reference import train_reference
from model_zoo.datasets.corpus import Corpus
from model_zoo.datasets.folder import open_folder

ROUNDS = 3


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    folder = tmp_path_factory.mktemp("founder")
    return chaos_ground(folder, stages=1, replicas=2, seed=1, averaging="local", small=True)


def test_rounds_are_shared_as_they_were(ground: Ground) -> None:
    whole = ground.manifest.microbatches_per_step
    one, some, rest = {"v1": whole}, {"v1": whole - 3}, {"v2": 3}

    def again(*shares: Mapping[str, int]) -> list[float]:
        return [*losses(Rounds(ground.manifest, ground.data, shares)).values()]

    plan = replace(ground.manifest, steps=ROUNDS)
    corpus = Corpus.from_folder(open_folder(ground.data))
    alone = again(*[one] * ROUNDS)
    assert alone == [*train_reference(plan, corpus, threads=1).losses]
    assert again(*[{**one, "v2": 0}] * ROUNDS) == alone
    assert again(*[{"v1": 2 * whole}] * ROUNDS) == alone, "counted twice, not learned twice"
    shared = again(some | rest, some | rest, one)
    assert shared[1] > alone[1], "fewer steps each"
    assert again(some | rest, some, one) == shared, "one that died counted what nobody says"
    assert again(some, one, one)[:1] == shared[:1]
    assert again() == [], "a swarm that never closed a round has a report, too"


def test_who_missed_a_round_comes_back_as_a_newcomer(ground: Ground) -> None:
    whole = ground.manifest.microbatches_per_step

    def again(missed: Mapping[str, int], name: str) -> list[float]:
        shares = [{"v1": whole - 3, "v2": 3}, {"v1": whole, **missed}, {"v1": whole - 3, name: 3}]
        return [*losses(Rounds(ground.manifest, ground.data, shares)).values()]

    newcomer = again({}, "v3")
    assert again({}, "v2") == newcomer
    assert again({"v2": 0}, "v2")[:2] == newcomer[:2]
    assert again({"v2": 0}, "v2") != newcomer
