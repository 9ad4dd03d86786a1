"""The demo's folder, without processes."""

from pathlib import Path

import pytest

from client.errors import UserError
from client.lab.demo.folder import REPORT_FILE, SWARM_FILE, prepare_folder


def test_what_an_earlier_demo_has_found_is_no_result_of_the_next_one(tmp_path: Path) -> None:
    for name in (SWARM_FILE, REPORT_FILE):
        (tmp_path / name).touch()
    prepare_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [SWARM_FILE]


@pytest.mark.parametrize("content", ["thesis.txt", "model", "."])
def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path, content: str) -> None:
    out = tmp_path / "out"
    if content == ".":
        out.touch()  # a file, not a folder
    else:
        out.mkdir()
        (out / content).touch()
    with pytest.raises(UserError, match="out"):
        prepare_folder(out)
    assert content == "." or (out / content).exists()
