"""Local rounds made again: by as many replicas as in the run, each microbatch once."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from client.lab.chaos.ground import Ground
from client.lab.chaos.retrace import Rounds, losses
from client.lab.reference import train_reference, training_plan
from model_zoo.datasets.corpus import Corpus
from model_zoo.datasets.folder import open_folder

ROUNDS = 3


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    folder = tmp_path_factory.mktemp("founder")
    return Ground(folder, stages=1, replicas=2, seed=1, averaging="local", small=True)


def test_rounds_are_shared_as_they_were(ground: Ground) -> None:
    whole = ground.manifest.microbatches_per_step

    def again(shares: Mapping[str, int]) -> list[float]:
        return [*losses(Rounds(ground.manifest, ground.data, [shares] * ROUNDS)).values()]

    plan = replace(training_plan(ground.manifest), steps=ROUNDS)
    alone = again({"v1": whole})
    corpus = Corpus.from_folder(open_folder(ground.data))
    assert alone == [*train_reference(plan, corpus, threads=1).losses]
    assert again({"v1": whole, "v2": 0}) == alone
    assert again({"v1": 2 * whole}) == alone, "what was counted twice is not learned twice"
    shared = again({"v1": whole - 3, "v2": 3})
    assert shared[1] > alone[1], "fewer steps each"
    assert again({"v1": whole - 3}) == shared, "one that died counted what nobody says it counted"
