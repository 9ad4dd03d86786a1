"""A swarm that begins with an imported model: two processes, and nobody but the founder has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from client.errors import ExitCode
from client.lab.local_swarm import LocalSwarm
from client.store.paths import home_folders
from client.store.texts import TextStore
from model_zoo.export import export_hf
from model_zoo.specs.model import ModelSpec
from model_zoo.whole import build_whole
from protocol.invite import parse_swarm_file
from tests.support.e2e_local import HOST, in_state, volunteer, wait_for

pytestmark = pytest.mark.long
QWEN3 = ModelSpec("qwen3", 3, 32, 4, 2, 48, context=16, norm_eps=1e-6, head_dim=12)
STEPS = 8
RUN = ("--steps", str(STEPS), "--microbatch", "2", "--microbatches", "4", "--no-measure")
STILL = ("--lr", "1e-30", "--min-lr", "0", "--weight-decay", "0", "--checkpoint-every", "10")
FLAGS = ("--listen-host", HOST, "--threads", "1")


def test_members_begin_with_the_weights_of_the_founders_folder(
    folder: Path, processes: LocalSwarm
) -> None:
    """Updates too small to change a bit: what is exported is what was imported."""
    model = folder / "qwen3"
    export_hf(QWEN3, build_whole(QWEN3, seed=2).state_dict(), model)  # none is 0
    home = folder / "volunteer-1"
    created = volunteer(
        home,
        *("create", "--from", str(model), "--stages", "2", *RUN, *STILL, "--name", "e2e"),
        *("--out", str(folder / "x.swarm"), "--json", "--announce", f"/ip4/{HOST}/tcp/4001"),
    )
    assert created.returncode == 0, created.stderr
    assert json.loads(created.stdout)["parameters"] == QWEN3.parameter_count
    manifest = parse_swarm_file((folder / "x.swarm").read_text()).manifest
    members = [processes.start(f"volunteer-{number}", FLAGS) for number in (1, 2)]
    for member in members:
        in_state(member, members, "done")
    out = folder / "out"

    def exported() -> bool | None:
        done = volunteer(home, "export", "--out", str(out))
        assert done.returncode in (0, ExitCode.TEMPORARY), done.stderr
        return done.returncode == 0 or None

    # the last version may still be on its way to the disks
    wait_for(exported, "an export", members)
    second = TextStore(home_folders(members[1].home).texts)
    here = [second.path(start.digest).exists() for start in manifest.start]
    assert sum(here) >= 1
    before, after = (load_file(each / "model.safetensors") for each in (model, out))
    assert all(torch.equal(before[name], after[name]) for name in before)
