"""Founding: from flags to a manifest that every peer accepts."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from client.cli.founding.averaging import HANDLING_S, run_s
from client.cli.founding.fitting import fewest_stages
from client.cli.founding.manifest import Founding, choose_model, choose_optimizer, drafted, narrowed
from client.cli.founding.options import (
    ModelChoices,
    OptimizerChoices,
    PlanChoices,
    RunChoices,
    for_strangers,
)
from client.cli.founding.presets import PRESETS, PresetName
from client.cli.planning.answer import answer
from client.cli.planning.machines import this_machine
from client.cli.planning.run import chosen as chosen_run
from client.cli.reach.home import find_home, promised_port
from client.cli.terminal.swarm_text import introduction
from client.compute.memory import USUAL_GRAPHS, memory_need
from client.compute.requests import Probed
from client.config import Settings
from client.errors import ExitCode, UserError
from client.plan.model import Machine
from client.views.words import size as human_bytes
from model_zoo.specs.codec import CODECS
from model_zoo.specs.local_rounds import LocalRounds
from model_zoo.specs.narrow import Narrow
from model_zoo.specs.operations import flops_per_token
from model_zoo.specs.precision import Compute, Precision
from model_zoo.specs.slices import narrow_layers, whole_slice
from model_zoo.specs.state import StateSpec
from protocol.ids import PeerId, SwarmId
from protocol.invite import parse_invite, parse_swarm_file
from protocol.manifest import Manifest, decode_manifest, encode_manifest
from tests.support.cli_process import Within
from tests.support.saved_swarms import SIGNER, founded


def described(manifest: Manifest) -> str:
    return "\n".join(introduction(manifest, SwarmId("ab" * 32)))


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_makes_a_manifest_that_peers_accept(preset: PresetName) -> None:
    fewest = fewest_stages(choose_model(PRESETS[preset], ModelChoices()))
    manifest = founded(preset=preset, stages=max(2, fewest)).manifest
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_stage_costs_add_up_to_the_model() -> None:
    manifest = founded(stages=3, layers=6).manifest
    first, middle, last = manifest.stages
    assert sum(stage.layers for stage in manifest.stages) == 6
    assert middle.uplink_bytes > max(first.uplink_bytes, last.uplink_bytes)
    assert first.downlink_bytes < first.uplink_bytes, "targets travel forward only"
    assert all(stage.memory_bytes > 16 * stage.parameters for stage in manifest.stages)


@pytest.mark.parametrize(("preset", "stages"), [("tiny", 2), ("llama-3.1-8b", 32)])
def test_stages_cost_the_operations_of_their_model(preset: str, stages: int) -> None:
    """Nothing is run: a layer and the head of 8B parameters would take minutes."""
    spec = PRESETS[preset].model
    draft = drafted(RunChoices(sequences=2), spec, stages)
    whole = 2 * spec.context * flops_per_token(spec, whole_slice(spec))
    assert sum(cost.flops for cost in draft.stages) == pytest.approx(whole)


SLOW = Machine(2e12, 8e9, 1e5, 1e5)
FAST = Machine(2e9, 8e9, 1e9, 1e9)


def settled_on(machine: Machine, **choices: Any) -> Founding:
    """A swarm for strangers of a founder whose machine was measured so."""
    usual = {"stages": 1, "layers": 2, "width": 32, "measure": True}
    return founded(machine=lambda: machine, strangers=True, **{**usual, **choices})


def test_averaging_follows_the_founders_line_unless_it_is_chosen() -> None:
    local = settled_on(SLOW).manifest
    assert local.local_rounds is not None
    assert local.microbatches_per_step > PRESETS["tiny"].microbatches_per_step
    assert not local.audits, "nobody could recompute what follows from own momentum"
    assert local.aggregation == "centred-clipping"
    exact = settled_on(FAST).manifest
    assert (exact.local_rounds, exact.audits > 0) == (None, True)
    for choice in ({"averaging": "every-step"}, {"audit": 3}, {"measure": False}):
        assert settled_on(SLOW, **choice).manifest.local_rounds is None


@pytest.mark.parametrize("aggregation", [None, "sum"])
def test_rounds_are_reckoned_with_the_bytes_that_are_sent(aggregation: str | None) -> None:
    found = settled_on(SLOW, averaging="local", aggregation=aggregation)
    sent = CODECS[found.manifest.averaging_codec].bytes_per_number
    contribution = human_bytes(sent * found.manifest.stages[0].parameters)
    assert any(f", is {contribution}, where" in line for line in found.averaging)


def test_a_run_of_rounds_has_the_tokens_warm_up_and_checkpoints_of_its_steps() -> None:
    preset = PRESETS["tiny"]
    manifest = settled_on(SLOW, averaging="local").manifest
    context = manifest.model.context
    a_step = preset.microbatches_per_step * preset.sequences_per_microbatch * context
    a_round = manifest.microbatches_per_step * manifest.tokens_per_microbatch
    assert manifest.steps * a_round == pytest.approx(preset.steps * a_step, rel=0.05)
    assert 1 <= manifest.optimizer.warmup_steps <= manifest.steps // 5
    assert manifest.optimizer.decay_steps <= manifest.steps + 1
    assert manifest.policy.checkpoint_every * a_round <= 50 * a_step
    chosen = settled_on(SLOW, averaging="local", microbatches=64, inner_microbatches=2).manifest
    assert chosen.microbatches_per_step == 64
    assert chosen.local_rounds == LocalRounds(inner_microbatches=2)
    assert chosen.state == StateSpec("sgd")


@pytest.mark.parametrize("sequences", [None, 5])
def test_rounds_are_of_the_microbatches_that_plan_finds_best(sequences: int | None) -> None:
    manifest = settled_on(SLOW, averaging="local", sequences=sequences).manifest
    run = PlanChoices(averaging="local", stages=1, sequences=sequences)
    planned = chosen_run(run, ModelChoices(layers=2, width=32), machines=2)
    best = answer(planned, [SLOW] * 2, tokens=None).best
    assert manifest.sequences_per_microbatch == best.sequences
    assert best.sequences == (sequences or 16)
    assert manifest.microbatches_per_step == best.microbatches
    assert manifest.local_rounds == LocalRounds(best.inner_microbatches)


@pytest.mark.parametrize("averaging", ["local", "every-step"])
def test_a_manifest_says_the_memory_that_its_volunteers_will_reckon_with(averaging: str) -> None:
    manifest = settled_on(SLOW, averaging=averaging, audit=0).manifest
    need = memory_need(manifest, 0, USUAL_GRAPHS, reruns_blocks=True)
    assert manifest.stages[0].memory_bytes == need.total_bytes


def test_narrow_boundaries_lie_where_the_model_is_cut() -> None:
    shape = {"stages": 3, "layers": 6, "width": 128, "heads": 4}
    manifest = founded(boundary_width=32, boundary_codec="s4", **shape).manifest
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert manifest.model.narrow == Narrow(32, narrow_layers(manifest.layers_per_stage))
    assert manifest.tokens_everywhere
    assert "s4 of 32 numbers a token" in described(manifest)
    wide = founded(boundary_codec="s8", **shape).manifest
    sent, usual = (each.stages[-1].uplink_bytes for each in (manifest, wide))
    assert sent < usual / 7
    ends = 4 * 128 * (256 + 32)
    assert manifest.model.parameter_count - wide.model.parameter_count == ends
    assert sum(each.parameters for each in manifest.stages) == manifest.model.parameter_count


def test_narrow_boundaries_of_many_tokens_are_refused_with_their_size() -> None:
    preset = choose_model(PRESETS["llama-3.2-1b"], ModelChoices(), vocab=128_256)
    with pytest.raises(UserError, match=r"128,256 tokens 2,101 MB a boundary"):
        narrowed(preset, [8, 8], 512)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ("fp32", ""),
        ("bf16", "; passes compute in bf16"),
        ("auto", "; passes compute in bf16 on cards, in fp32 elsewhere"),
    ],
)
def test_the_manifest_says_in_what_passes_compute(chosen: Compute, words: str) -> None:
    """`auto` is every machine's own choice, not the founder's."""
    manifest = founded(compute_dtype=chosen).manifest
    encoded = encode_manifest(manifest)
    assert decode_manifest(encoded).compute == chosen
    assert (b'"compute"' in encoded) is (chosen != "fp32")
    (line,) = [line for line in described(manifest).splitlines() if "on wires" in line]
    assert line.endswith(words)
    assert ("compute in" in line) is (chosen != "fp32")


def test_a_stage_that_this_machine_has_no_memory_for_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=10**9))
    warnings = founded(preset="gpt2-124m").warnings
    [warning] = [words for words in warnings if "memory" in words]
    assert "this machine has 1.00 GB: with more --stages" in warning


@pytest.mark.parametrize(
    ("stages", "memory", "said"), [(2, 8e9, True), (1, 8e9, False), (2, 1e6, False)]
)
def test_who_could_hold_the_whole_model_in_local_rounds_is_told(
    stages: int, memory: float, said: bool
) -> None:
    machine = Machine(1e10, memory, 2e6, 1e7)
    choices = {"averaging": "local", "stages": stages, "measure": True}
    warnings = founded(machine=lambda: machine, **choices).warnings
    assert any("--stages 1 nothing is sent" in words for words in warnings) is said


@pytest.mark.parametrize(
    ("run", "rule", "audits", "replicas"),
    [
        (RunChoices(), "centred-clipping", 3, 3),
        (RunChoices(private=True), "sum", None, 2),
        (RunChoices(private=True, audit=5), "sum", 5, 3),
        (RunChoices(aggregation="sum", audit=0), "sum", 0, 2),
        (RunChoices(audit=20, redundancy=2), "centred-clipping", 20, 2),
        (RunChoices(microbatches=2), "sum", 3, 3),
    ],
)
def test_strangers_are_audited_and_averaged_robustly_unless_the_founder_chooses(
    run: RunChoices, rule: str, audits: int | None, replicas: int
) -> None:
    chosen = for_strangers(run)
    assert (chosen.rule, chosen.audit, chosen.replicas) == (rule, audits, replicas)


@pytest.mark.parametrize(
    ("choices", "words", "step"),
    [
        ({"kv_heads": 2}, "--kv-heads == heads", ""),
        ({"name": "x" * 65}, "out of range", ""),
        (
            {"compute_dtype": "auto", "audit": 3},
            "between honest passes in bf16 and in fp32.*--compute-dtype fp32.*--audit 0",
            "",
        ),
        (
            {"averaging": "local", "inner_microbatches": 10**5},
            "--inner-microbatches should be int <= 65536; it is 100000",
            "",
        ),
        ({"boundary_width": 64, "source": Path("x")}, "measured first", "leave it out"),
        ({"boundary_width": 4096}, "not below the width", "--boundary-width"),
        ({"boundary_width": 48}, "neither divides 128", "--boundary-width"),
        ({"schedule": "wsd", "decay_from": 3000}, "--decay-steps", ""),
    ],
)
def test_contradictions_are_usage_errors(choices: dict[str, Any], words: str, step: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        founded(**choices)
    assert caught.value.exit_code == ExitCode.USAGE
    assert step in caught.value.next_step


def test_warm_up_and_decay_follow_the_number_of_steps() -> None:
    preset = PRESETS["nanogpt"]
    chosen = choose_optimizer(preset, OptimizerChoices(), steps=200)
    assert (chosen.warmup_steps, chosen.decay_steps) == (10, 200)
    assert choose_optimizer(preset, OptimizerChoices(), preset.steps) == preset.optimizer
    given_by_user = choose_optimizer(preset, OptimizerChoices(decay_steps=2000), steps=200)
    assert given_by_user.decay_steps == 2000


def test_a_stable_rate_falls_in_the_last_fifth() -> None:
    preset = PRESETS["nanogpt"]
    chosen = choose_optimizer(preset, OptimizerChoices(schedule="wsd"), steps=200)
    assert (chosen.schedule, chosen.falls_from, chosen.decay_steps) == ("wsd", 160, 200)
    given_by_user = OptimizerChoices(schedule="wsd", decay_from=100)
    chosen = choose_optimizer(preset, given_by_user, steps=200)
    assert chosen.falls_from == 100


def test_another_optimizer_begins_with_its_usual_rate_and_momentum() -> None:
    preset = PRESETS["nanogpt"]
    chosen = choose_optimizer(preset, OptimizerChoices(), preset.steps, "sgd")
    assert chosen.lr == pytest.approx(preset.optimizer.lr * 100)
    assert chosen.lr * chosen.weight_decay == pytest.approx(1e-4)
    assert choose_optimizer(preset, OptimizerChoices(), preset.steps, "muon").beta1 == 0.95
    own = choose_optimizer(preset, OptimizerChoices(lr=7e-4, beta1=0.9), preset.steps, "muon")
    assert (own.lr, own.beta1) == (7e-4, 0.9)


def test_the_file_and_the_invite_name_the_same_swarm(within: Within, tmp_path: Path) -> None:
    path = tmp_path / "my own.swarm"
    address = "/ip4/203.0.113.7/tcp/4001"
    done = within.ends(0, "create", "--no-measure", "--out", str(path), "--announce", address)
    assert f"volunteer join --swarm '{path}'" in done.stderr, "it can be copied"
    invite, swarm = parse_invite(done.stdout.strip()), parse_swarm_file(path.read_text())
    assert invite == swarm.invite
    assert str(invite.peers[0]) == f"{address}/p2p/{swarm.manifest.founder}"
    again = within.ends(2, "create", "--no-measure", "--out", str(path))
    assert "--force" in again.stderr


def test_the_founder_listens_where_the_file_promises() -> None:
    invite = parse_invite(f"volunteer:{'ab' * 32}?peer=/ip4/203.0.113.7/tcp/4001/p2p/{SIGNER.peer}")
    other = PeerId("12D3KooWQVJeEspFqUfxUYGgL7GTpevs1mT5aLgaFYv7TSjBuRer")
    chosen = Settings(listen_port=5)
    for target in (invite, invite.peers[0]):
        assert promised_port(Settings(), SIGNER.peer, target).listen_port == 4001
        assert promised_port(Settings(), other, target).listen_port == 0
        assert promised_port(chosen, SIGNER.peer, target).listen_port == 5


def test_stages_of_one_kind_cost_the_same_on_every_machine() -> None:
    shape = {"stages": 4, "layers": 4, "width": 32}
    first, second, third, last = settled_on(FAST, **shape).manifest.stages
    assert second.flops == third.flops < last.flops
    assert first.flops == second.flops, "a look-up takes no operations"
    again = settled_on(replace(FAST, flop_per_s=1e12), **shape).manifest
    assert again.stages == (first, second, third, last)


def test_the_time_of_the_run_is_that_of_volunteers_like_the_founder() -> None:
    assert founded().seconds is None
    slow, fast = settled_on(SLOW), settled_on(FAST)
    for founding, machine in ((slow, SLOW), (fast, FAST)):
        assert founding.seconds == run_s(founding.manifest, machine)
    endless = run_s(fast.manifest, replace(FAST, flop_per_s=1e15))
    assert 3200 * HANDLING_S <= endless < fast.seconds, "200 steps of 16 microbatches"


@pytest.mark.parametrize(("compute", "speed"), [("fp32", 1e12), ("bf16", 9e12), ("auto", 9e12)])
def test_a_card_is_as_fast_as_it_is_in_the_runs_type_of_numbers(
    monkeypatch: pytest.MonkeyPatch, compute: Compute, speed: float
) -> None:
    rates: dict[Precision, float] = {"fp32": 1e12, "bf16": 9e12}
    size = {"memory_total_bytes": 10**10, "memory_available_bytes": 10**10}
    card = Probed(platform="cuda", peaks=rates, **size)
    monkeypatch.setattr("client.compute.device.probe", lambda request: card)
    assert this_machine(find_home(), compute).flop_per_s == speed


def test_a_host_that_is_not_ours_is_refused_in_words(
    within: Within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOLUNTEER_LISTEN_HOST", "192.0.2.1")
    done = within.ends(
        ExitCode.CONFIG, "create", "--no-measure", "--out", str(tmp_path / "a.swarm")
    )
    assert "cannot listen on 192.0.2.1" in done.stderr
