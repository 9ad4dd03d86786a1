"""``volunteer plan``: machines from flags and tables, the answer, and mistakes explained."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from client.cli.commands.create import sign, write_swarm_file
from client.cli.planning.machines import read_table
from client.errors import ExitCode, UserError
from protocol.address import Address
from tests.support.cli_process import Within
from tests.support.saved_swarms import SIGNER, founded


def described(**other: str) -> tuple[str, ...]:
    """Flags that describe four machines, so that nothing is measured."""
    flags = {"machines": "4", "gflops": "50", "memory": "8GB", "up": "20Mbit/s"}
    flags |= {"down": "100Mbit/s", "rtt-ms": "60", **other}
    run = ("--averaging", "every-step")
    return (*run, *(w for name, text in flags.items() for w in (f"--{name}", text)))


DESCRIBED = described()
TOML = """
[[machine]]
count = 3
gflops = 400.0
memory = "16GB"
up = "20Mbit/s"
down = "100Mbit/s"
rtt_ms = 60

[[machine]]
gflops = 50.0
memory = "8GB"
up = "2.5MB/s"
down = "100Mbit/s"
"""


def planned(within: Within, *arguments: str) -> dict[str, Any]:
    done = within.ends(0, "plan", "--json", *arguments)
    return dict(json.loads(done.stdout))


HOME = ("--preset", "llama-3.2-1b", "--machines", "16", "--gflops", "60000", "--memory", "22GB")
STRANGERS = (*HOME, "--up", "20Mbit/s", "--down", "100Mbit/s", "--rtt-ms", "60")
HOMES = (*STRANGERS, "--private")


def test_sixteen_gaming_pcs_on_home_lines_reach_three_fifths_of_sixteen_alone(
    within: Within,
) -> None:
    """What a round touches once lies with the hosts, so that one stage has all of the model. The
    run has twenty tokens a parameter."""
    answer = planned(within, *HOMES, "--host-memory", "48GB", "--tokens", "25000000000")
    exact, local, *rest = answer["ways"]
    assert (local["chosen"], local["stages"], local["replicas"]) == (True, 1, 16)
    assert local["averaging_codec"] == "q2"
    assert local["tokens_per_s"] >= 72_000 > 100 * exact["tokens_per_s"]
    assert local["share"] >= 0.6
    assert local["share"] == local["tokens_per_s"] / answer["alone_tokens_per_s"]
    assert answer["holds_alone"]
    assert 30 * local["sent_bytes_per_day"] < 4e12
    assert (exact["loss_percent"], local["loss_percent"] > 0) == (0, True)
    (narrow,) = rest
    assert narrow["tokens_per_s"] == local["tokens_per_s"], "there are no boundaries"
    assert narrow["loss_percent"] == local["loss_percent"]
    assert local["memory_bytes"] <= 22e9 < local["memory_bytes"] + local["host_memory_bytes"]
    assert not any("are few" in note for note in answer["notes"])
    flags = f"--stages 1 --microbatch {local['sequences']} --averaging local"
    assert any(flags in note for note in answer["notes"]), "create takes the preset's otherwise"
    less = planned(within, *HOMES, "--host-memory", "48GB")
    assert less["ways"][1]["loss_percent"] > 1.8 * local["loss_percent"], "fewer rounds"
    assert any("rounds are few" in note for note in less["notes"])
    asked = planned(within, *STRANGERS, "--host-memory", "48GB", "--tokens", "25000000000")["best"]
    assert asked["averaging_codec"] == "q3", "as create founds it: a rule bounds liars"
    assert 0.8 < asked["tokens_per_s"] / local["tokens_per_s"] < 0.95
    _, local, narrow = planned(within, *HOMES)["ways"]
    assert local["stages"] > 1, "processors have all of it in one memory"
    assert narrow["tokens_per_s"] > 1.5 * local["tokens_per_s"], "lines carry boundaries"
    assert narrow["loss_percent"] == pytest.approx(local["loss_percent"] + 0.7, abs=0.5)


def test_a_founded_swarm_costs_what_its_manifest_says(within: Within, tmp_path: Path) -> None:
    path = tmp_path / "x.swarm"
    within.ends(
        0,
        *("create", "--no-measure", "--stages", "2", "--redundancy", "2", "--out", str(path)),
        *("--announce", "/ip4/127.0.0.1/tcp/4001"),
    )
    founded = planned(within, "--swarm", str(path), *DESCRIBED[2:])
    flags = planned(within, *DESCRIBED, "--stages", "2")
    of_swarm, of_flags = (each["best"] for each in (founded, flags))
    assert of_swarm["tokens_per_s"] == pytest.approx(of_flags["tokens_per_s"])
    for flag in (("--width", "64"), ("--stages", "4"), ("--boundary-codec", "bf16")):
        refused = within.ends(ExitCode.USAGE, "plan", "--swarm", str(path), *flag)
        assert "--swarm fixes" in refused.stderr


def test_a_manifest_whose_stages_cost_nothing_is_no_plan(within: Within, tmp_path: Path) -> None:
    manifest, path = founded(stages=2).manifest, tmp_path / "x.swarm"
    nothing = {"flops": 0.0, "uplink_bytes": 0.0, "downlink_bytes": 0.0}
    stages = tuple(msgspec.structs.replace(stage, **nothing) for stage in manifest.stages)
    free = msgspec.structs.replace(manifest, stages=stages)
    write_swarm_file(path, sign(free, SIGNER, (Address("ip4", "127.0.0.1", 1, SIGNER.peer),)))
    done = within.ends(ExitCode.RUNTIME, "plan", "--swarm", str(path), *DESCRIBED[2:])
    assert "a stage is said to cost nothing" in done.stderr
    assert "founder" in done.stderr


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"machine = 3",
        b"[[machine]]\ncount = 0",
        b"[[machine]]\ngflops = nan",
        b"[[machine]]\nrtt_ms = -1",
        b"x = " + b"[" * 5000,
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_table(path)
    assert caught.value.exit_code is ExitCode.USAGE
