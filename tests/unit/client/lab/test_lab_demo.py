"""The folder of the demo's results."""

from pathlib import Path

import pytest

from client.errors import UserError
from client.lab.demo.command import MARKER, prepare_folder


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
