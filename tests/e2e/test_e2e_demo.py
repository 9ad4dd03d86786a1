"""The demo itself, shortened: a volunteer is killed and the results are all there."""

import json
from pathlib import Path

import pytest

from tests.support.e2e_local import parsed, volunteer

pytestmark = pytest.mark.slow


def test_a_short_demo_survives_a_kill_and_leaves_its_results(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = volunteer(
        tmp_path / "home", "demo", "--steps", "10", "--out", str(out), "--json", timeout_s=300
    )
    report = parsed(done)
    assert report["ok"]
    assert report["version"] == report["steps"] == 10
    assert report["volunteers"] == 4
    assert report["killed"]
    assert report["problems"] == []
    assert report["steps_closed"] == 10
    assert report["microbatches_doubled"] == report["steps_differing"] == 0
    assert report["recovered_s"] is None or report["recovered_s"] < 5
    assert report["held_out_loss"] < 5.5, "better than guessing bytes"
    assert json.loads((out / "report.json").read_text()) == report
    names = {"config.json", "generation_config.json", "model.safetensors"}
    names |= {"tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in (out / "model").iterdir()} == names
    assert len(report["losses"]) > 5
    assert 0 < report["killed_at_step"] < 10
    assert (out / "sample.txt").read_bytes().decode() == report["sample"]
