"""Preferences: the numbers by which volunteers and stages rank each other.

Pure functions. The results are integers, which messages carry. Units:

    rate     c_vs   micro-microbatches per second (1_000_000 = one microbatch per second)
    gain            ordinal: larger is better
    score    pi_s   ordinal: larger is better; the low bits are the tie of (volunteer, stage)
"""

import math
from functools import lru_cache
from typing import NamedTuple

from model_zoo.specs.state import StateSpec
from protocol.ids import PeerId, Stage, rank
from protocol.manifest import StageCost

MICRO = 1_000_000
MAX_RATE = 10**12
"""A million microbatches per second: above any machine, and safe from overflow in a message."""

RELATIVES_HALVE = 4
"""So many earlier relatives in a stage halve its worth."""

Speed = tuple[float, float, float]
"""FLOP/s, uplink and downlink bytes/s."""

MAX_BUCKET = 100
TIE_BITS = 34
MAX_SCORE = 2**62


def rate(speed: Speed, memory_bytes: float, cost: StageCost) -> int:
    """Return c_vs = min(flops / F_s, uplink / U_s, downlink / D_s) in millionths per second; 0 if
    the memory is too small for the stage."""
    if not memory_bytes >= cost.memory_bytes:  # also refuses NaN
        return 0
    return min(map(_ratio, speed, (cost.flops, cost.uplink_bytes, cost.downlink_bytes)))


def _ratio(supply: float, demand: float) -> int:
    if not supply > 0 or math.isnan(demand):
        return 0
    if demand <= 0 or supply / demand * MICRO >= MAX_RATE:
        return MAX_RATE
    return int(supply / demand * MICRO)


def download_s(cost: StageCost, state: StateSpec, downlink_bytes_per_s: float) -> float:
    """Return D_v, the seconds to fetch a stage's state; infinite without bandwidth."""
    if not downlink_bytes_per_s > 0:
        return math.inf
    return cost.parameters * state.bytes_per_parameter / downlink_bytes_per_s


class Wish(NamedTuple):
    """A volunteer's utility of a stage; tuples compare in this order, larger is better.

    u_v(s) = 1e6 [n_s without v < r] + (c_vs / mean c_s) / (L_s without v + lambda)^3. The first
    term is a field of its own, so that coverage comes before throughput however slow the machines
    are. The second is divided by 1 + k / 4 where k earlier relatives hold the stage.
    """

    urgent: bool
    gain: int
    tie: int


def gain(rate: int, usual: int, *, level: int, fair: int, relatives: int = 0) -> int:
    """Return the second term of u_v(s) for a rate c_vs.

    Args:
        usual: the mean rate at the stage of the members that can serve some stage.
        level: summed rate of the stage without the volunteer.
        fair: lambda.
        relatives: earlier relatives of the volunteer that hold the stage.
    """
    found = rate * 10**27 // (max(usual, 1) * (level + max(fair, 1)) ** 3)
    return found * RELATIVES_HALVE // (RELATIVES_HALVE + relatives)


def score(peer: PeerId, stage: Stage, *, rates: tuple[int, ...], fair: int) -> int:
    """Return pi_s(v) = 1000 round(log_1.1 rho) + 10 min(c_vs / lambda, 10), tie included; ``rates``
    are c_vs for every stage, ``fair`` is lambda."""
    elsewhere = max(rates[:stage] + rates[stage + 1 :], default=0)
    bucket = MAX_BUCKET + log_bucket(rates[stage], elsewhere)
    size = min(rates[stage] * 10_000 // max(fair, 1), 100_000)
    return (bucket * MICRO + size) << TIE_BITS | tie(peer, stage)


def log_bucket(here: int, elsewhere: int) -> int:
    """Return round(log_1.1 rho), rho = here / elsewhere, within +-``MAX_BUCKET``."""
    if here <= 0:
        return -MAX_BUCKET
    if elsewhere <= 0:
        return MAX_BUCKET
    bucket = round(math.log(here / elsewhere, 1.1))
    return max(-MAX_BUCKET, min(bucket, MAX_BUCKET))


@lru_cache(maxsize=2**16)
def tie(peer: PeerId, stage: Stage) -> int:
    """Return hash(v, s), a tie-breaker that differs from stage to stage."""
    return int.from_bytes(rank("tie", stage, peer), "big") >> (128 - TIE_BITS)


def moment(stage: Stage, peer: PeerId) -> float:
    """Return a number from 0 to 1 that differs from peer to peer: they do not all act at once."""
    return tie(peer, stage) % 1000 / 1000


def words(rate: int, of: int | None = None) -> str:
    """Return a rate in millionths of a microbatch per second as text, and with which it is
    compared."""
    compared = "" if of is None else f" of {_number(of)}"
    return f"{_number(rate)}{compared} microbatches/s"


def _number(rate: int) -> str:
    value = rate / MICRO
    return f"{value:.2f}" if value >= 0.1 or not value else f"{value:.2g}"
