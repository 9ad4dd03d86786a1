"""The real machines in a simulated market cover every stage, and come near the oracle's bound."""

from __future__ import annotations

from client.lab.simulate.market.bounds import oracle
from client.lab.simulate.market.crowd import Crowd
from client.lab.simulate.market.nature import draw
from client.lab.simulate.market.policies.policy import Market
from client.lab.simulate.market.run import play
from client.lab.simulate.market.score import score
from client.lab.simulate.market.setting import Setting


def test_machines_cover_every_stage_and_use_what_there_is() -> None:
    nature, crowds = draw(Setting(16, 4, hours=0.15, seed=1)), list[Crowd]()

    def make(market: Market) -> Crowd:
        crowds.append(Crowd(market))
        return crowds[0]

    record = play(nature, make)
    assert not record.empty[record.times_s > 120].any()
    figures = score("ours", nature, oracle(nature), record)
    assert figures.share > 0.5
    assert figures.talk is not None
    assert figures.talk.letters > 0
    assert crowds[0].said.penalties == 0
