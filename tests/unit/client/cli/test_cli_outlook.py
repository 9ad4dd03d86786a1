"""What a founder is told before anybody joins: epochs, time, memory, and what to do about them."""

import re

from msgspec import structs

from client.cli.founding.outlook import LONG_S, outlook, warn_of_time
from client.cli.terminal.mixture_text import MANY_TIMES, times_read, warn_of_repeats
from client.cli.terminal.swarm_text import introduction
from model_zoo.specs.data import DataSpec
from protocol.ids import SwarmId
from protocol.manifest import Manifest, Policy
from tests.support.protocol_examples import manifest


def text(size_bytes: int) -> DataSpec:
    return DataSpec(name="book.txt", size_bytes=size_bytes, digest="0" * 64)


def run(steps: int, **changes: object) -> Manifest:
    """8 microbatches of 4 sequences of 32 bytes: 1,024 tokens a step."""
    return manifest(stages=2, steps=steps, policy=Policy(redundancy=2), **changes)


class TestEpochs:
    def test_one_that_is_read_many_times_is_warned_of_with_what_to_do(self) -> None:
        [warning] = warn_of_repeats(run(10_000, data=text(2 * (32 * 3125 + 1))), 10_000)
        assert "the run reads 10,240,000 tokens, and the text has 90,016 to train on" in warning
        assert "it is read 113.8 times" in warning
        assert "28.4 times as much, or --steps 351" in warning
        assert list(warn_of_repeats(run(351, data=text(2 * (32 * 3125 + 1))), 351)) == []

    def test_windows_that_are_held_out_are_not_counted(self) -> None:
        data = text(2 * (32 * 1000 + 1))
        assert times_read(run(MANY_TIMES, data=data), MANY_TIMES * 900 / 32) == MANY_TIMES


class TestTime:
    def test_what_was_not_measured_is_not_guessed(self) -> None:
        assert list(warn_of_time(run(10**9), None)) == []
        assert "nothing was measured" in list(outlook(run(10), None))[-1]

    def test_a_run_of_months_is_warned_of_with_what_to_do(self) -> None:
        [warning] = warn_of_time(run(1000), 4 * LONG_S)
        assert "--steps 250 takes" in warning
        assert "4 volunteers (2 in each of 2 stages)" in warning
        assert list(warn_of_time(run(250), LONG_S)) == []


def test_one_of_a_kind_is_not_said_in_the_plural() -> None:
    least = manifest(stages=1, steps=1, policy=Policy(redundancy=1))
    one = structs.replace(least, stages=(structs.replace(least.stages[0], layers=1),))
    one = structs.replace(one, model=structs.replace(one.model, layers=1))
    said = "\n".join([*introduction(one, SwarmId("ab" * 32)), *outlook(one, None)])
    said += "\n".join(warn_of_time(structs.replace(one, steps=10), 2 * LONG_S))
    assert "1 volunteer (of one stage)" in said
    assert re.findall(r"\b1 [a-z]+s\b", said) == []
