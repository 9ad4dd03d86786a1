"""The demo's decisions and screen, without processes: its folder, its victim, its judgement."""

from pathlib import Path

import pytest

from client.control.snapshot import Counters
from client.errors import UserError
from client.lab.demo.command import MARKER, prepare_folder
from client.lab.demo.report import check_invariants
from client.lab.demo.run import Observed
from tests.support.control_fakes import example_snapshot
from tests.support.hashes import checkpoint_of


def test_the_folder_of_an_earlier_demo_is_emptied(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare_folder(out)
    (out / "old.txt").touch()
    prepare_folder(out)
    assert [path.name for path in out.iterdir()] == [MARKER]


@pytest.mark.parametrize("content", ["thesis.txt", "."])
def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path, content: str) -> None:
    out = tmp_path / "out"
    if content == ".":
        out.touch()  # a file, not a folder
    else:
        out.mkdir()
        (out / content).touch()
    with pytest.raises(UserError, match="no demo wrote"):
        prepare_folder(out)
    assert out.exists()
    assert content == "." or (out / content).exists()


def _checkpoint(path: Path, version: int, content: bytes) -> Path:
    path.write_bytes(checkpoint_of("s", 0, 1, version, content))
    return path


def test_replicas_that_differ_in_a_bit_are_found(tmp_path: Path) -> None:
    same = [_checkpoint(tmp_path / f"{n}", 3, b"a" * 12) for n in range(2)]
    other = _checkpoint(tmp_path / "2", 3, b"a" * 11 + b"b")
    damaged = tmp_path / "3"
    damaged.write_bytes(b"cut off by the kill")
    seen = Observed(last={"x": example_snapshot(counters=Counters(doubled_microbatches=1), step=3)})
    found = check_invariants(seen, {3: {0: [*same, damaged]}})
    assert (found.compared_replicas, found.differing_replicas) == (1, 0)
    assert (found.doubled_microbatches, found.hold) == (1, False)
    found = check_invariants(Observed(), {3: {0: [*same, other]}})
    assert (found.compared_replicas, found.differing_replicas, found.hold) == (2, 1, False)
