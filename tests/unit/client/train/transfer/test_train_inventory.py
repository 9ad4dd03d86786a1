"""Which files on disk count as checkpoints of a swarm."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from client.compute.errors import CheckpointError, CheckpointUnreadable
from client.store.checkpoints import CheckpointFolder
from client.train.transfer import inventory
from protocol.limits import MAX_STEP

SWARM, STAGES = "ab" * 32, 2


def test_an_inventory_passes_over_what_is_damaged_misnamed_or_not_to_be_read_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, never = CheckpointFolder(tmp_path), MAX_STEP + 1
    texts = {(0, 5): "0 5", (0, 6): "x", (0, 7): "0 7", (1, 5): "1 4", (1, 6): "1 6"}
    texts[1, never] = f"1 {never}"
    for (stage, version), text in texts.items():
        folder.path(stage, version).write_text(text)

    def read(path: Path) -> SimpleNamespace:
        if path == folder.path(0, 7):
            raise CheckpointUnreadable("too many open files")
        if path == folder.path(0, 6):
            raise CheckpointError("no header")
        stage, version = map(int, path.read_text().split())
        return SimpleNamespace(swarm=SWARM, stages=STAGES, stage=stage, version=version)

    monkeypatch.setattr(inventory, "read_info", read)
    for _ in range(2):
        found = inventory.stored_states(folder, SWARM, STAGES)
        assert [(one.stage, one.version) for one in found] == [(0, 5), (1, 6)]
        assert sorted(path.name for path in tmp_path.glob("*.damaged")) == [
            "stage-0-v6.safetensors.damaged",
            f"stage-1-v{never}.safetensors.damaged",
            "stage-1-v5.safetensors.damaged",
        ]
    assert [(entry.stage, entry.version) for entry in folder.entries()] == [(0, 5), (0, 7), (1, 6)]
    assert inventory.stored_states(CheckpointFolder(tmp_path / "missing"), SWARM, STAGES) == []
