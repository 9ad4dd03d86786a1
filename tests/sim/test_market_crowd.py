"""The real machines in the market: they cover every stage, are heard and moved by nobody else, and
a crowd that shares a board does as well as one in which everybody has its own."""

from __future__ import annotations

import pytest

from client.lab.simulate.agenda import Agenda
from client.lab.simulate.market.bounds import oracle
from client.lab.simulate.market.crowd import Crowd
from client.lab.simulate.market.fleet import Fleet
from client.lab.simulate.market.nature import Nature, draw
from client.lab.simulate.market.policies.policy import Policy
from client.lab.simulate.market.run import Record, play
from client.lab.simulate.market.score import score
from client.lab.simulate.market.setting import Setting


def _play(nature: Nature, *, shared: bool) -> tuple[Record, Crowd]:
    crowds: list[Crowd] = []

    def make(nature: Nature, agenda: Agenda, fleet: Fleet) -> Policy:
        crowds.append(Crowd(nature, agenda, fleet, shared=shared))
        return crowds[0]

    return play(nature, make), crowds[0]


@pytest.mark.parametrize("shared", [False, True])
def test_machines_cover_every_stage_and_use_what_there_is(shared: bool) -> None:
    nature = draw(Setting(16, 4, hours=0.15, seed=1))
    record, crowd = _play(nature, shared=shared)
    assert not record.empty[record.times_s > 120].any()
    figures = score("ours", nature, oracle(nature), record)
    assert figures.share > 0.5
    assert figures.talk is not None
    assert figures.talk.letters > 0
    assert crowd.said.penalties == 0
