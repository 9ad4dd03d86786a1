"""Manifests: canonical, self-consistent, signed by their founder."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_zoo.specs.aggregation import RULES
from model_zoo.specs.data import DataSpec
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.manifest import (
    MAX_MANIFEST_BYTES,
    Manifest,
    decode_manifest,
    encode_manifest,
    swarm_id,
)
from protocol.wire.envelope import verify_manifest
from tests.support.protocol_examples import manifest, peer, signer


def changed(changes: dict[str, object]) -> Manifest:
    """The example with these fields; `ffn`: a model whose last stage has 8,655,872 parameters and
    4096 for each of so many, its first one 31,744 more."""
    fields = dict(changes)
    if ffn := fields.pop("ffn", None):
        large = {"width": 1024, "ffn_width": ffn}
        fields["model"] = msgspec.structs.replace(manifest().model, **large)
    costs = {"stages": fields.pop("stages")} if "stages" in fields else {}
    return msgspec.structs.replace(manifest(**fields), **costs)


def refuse(encoded: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_manifest(encoded)
    assert caught.value.reason == reason


def edited(path: str, value: object) -> bytes:
    """The example with one value replaced, in canonical JSON."""
    document = json.loads(encode_manifest(manifest()))
    at = document
    *folders, leaf = path.split(".")
    for folder in folders:
        at = at[folder]
    at[leaf] = value
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def test_round_trip_and_id() -> None:
    encoded = encode_manifest(manifest())
    assert decode_manifest(encoded) == manifest()
    assert len(swarm_id(encoded)) == 64
    assert swarm_id(encoded) != swarm_id(encode_manifest(manifest(seed=8)))


def test_a_synchronous_manifest_says_nothing_of_the_delayed_update() -> None:
    """Every manifest made before there was a choice keeps its bytes, and its swarm its id."""
    document = json.loads(encode_manifest(manifest()))
    assert document.keys() == {
        *("averaging_codec", "boundary_codec", "created", "data", "founder"),
        *("microbatches_per_step", "model", "name", "optimizer", "policy", "protocol", "seed"),
        *("sequences_per_microbatch", "stages", "steps"),
    }
    assert not manifest().delayed
    assert not decode_manifest(encode_manifest(manifest())).delayed


def test_the_delayed_update_makes_another_swarm() -> None:
    encoded = encode_manifest(manifest(delayed_update=True))
    assert json.loads(encoded)["delayed_update"] is True
    assert decode_manifest(encoded) == manifest(delayed_update=True)
    assert decode_manifest(encoded).delayed
    assert swarm_id(encoded) != swarm_id(encode_manifest(manifest()))


def test_another_aggregation_rule_makes_another_swarm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert manifest().aggregation_name == "sum"
    monkeypatch.setitem(RULES, "other", RULES["sum"])
    encoded = encode_manifest(manifest(aggregation="other"))
    assert decode_manifest(encoded).aggregation_name == "other"
    assert swarm_id(encoded) != swarm_id(encode_manifest(manifest()))


def test_the_largest_manifest_fits() -> None:
    assert len(encode_manifest(manifest(stages=256))) <= MAX_MANIFEST_BYTES


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("protocol", 2),
        ("name", ""),
        ("name", "x" * 65),
        ("seed", -1),
        ("seed", 1.5),
        ("seed", True),
        ("stages", []),
        ("model.architecture", "pickle"),
        ("model.layers", 0),
        ("model.width", 2**21),
        ("model.rope_theta", 0),
        ("optimizer.lr", -1),
        ("optimizer.lr", 1e31),
        ("optimizer.beta1", 1),
        ("optimizer.clip", None),
        ("data.source", "http"),
        ("data.digest", "0" * 63),
        ("data.digest", "0" * 64 + "\n"),
        ("policy.redundancy", 0),
        ("policy.dual_homing_percent", -1),
        ("policy.dual_homing_percent", 101),
        ("microbatches_per_step", 4097),
        ("steps", 2**41),
        ("delayed_update", False),
        ("delayed_update", None),
        ("delayed_update", 1),
        ("surprise", 1),
        ("model.code", "import os"),
    ],
)
def test_values_out_of_range_are_refused(path: str, value: object) -> None:
    refuse(edited(path, value), "manifest-malformed")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "\x1b[31mred"}, "cannot be shown"),
        ({"data": DataSpec("text", "../etc/passwd", 10_000, "0" * 64)}, "plain name"),
        ({"data": DataSpec("text", ".hidden", 10_000, "0" * 64)}, "plain name"),
        ({"data": DataSpec("text", "short", 320, "0" * 64)}, "shorter than one sample"),
        ({"model": msgspec.structs.replace(manifest().model, layers=5)}, "add up"),
        ({"sequences_per_microbatch": 4096, "model": None}, "larger than a frame"),
        ({"data": DataSpec("text", "long", 1500 * 2**21 + 1, "0" * 64)}, "at most 3.1 GB"),
        ({"ffn": 61_889}, "copied by newcomers: take more stages"),
        ({"ffn": 45_888, "delayed_update": True}, "copied by newcomers"),
        ({"ffn": 30_656, "averaging_codec": "fp32"}, "averaged in fp32"),
        ({"aggregation": "median"}, "rule 'median' is unknown here; known are sum.*: install"),
        ({"aggregation": "../x"}, "unknown"),
        ({"aggregation": "sum"}, "leave it out"),
    ],
)
def test_contradictions_are_named(changes: dict[str, object], words: str) -> None:
    if changes.get("model", 1) is None:
        changes["model"] = msgspec.structs.replace(manifest().model, context=2048)
        changes["data"] = DataSpec("text", "long", 100_000, "0" * 64)
    with pytest.raises(RemoteProtocolError, match=words):
        decode_manifest(encode_manifest(changed(changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"data": DataSpec("text", "long", 1500 * 2**21, "0" * 64)},
        {"data": DataSpec("text", "short", 321, "0" * 64)},
        {"ffn": 61_875},
        {"ffn": 45_870, "delayed_update": True},
        {"ffn": 29_620, "averaging_codec": "fp32"},
        {"ffn": 61_350, "averaging_codec": "bf16"},
    ],
)
def test_the_largest_runs_are_accepted(changes: dict[str, object]) -> None:
    large = changed(changes)
    assert decode_manifest(encode_manifest(large)) == large


@pytest.mark.parametrize(("sequences", "fits"), [(1363, True), (1364, False), (1984, False)])
def test_the_tokens_of_narrow_models_fit_a_frame_as_well(sequences: int, fits: bool) -> None:
    """A token takes two bytes; beside a boundary of one fp32 number a token that is a lot."""
    narrow = {"width": 1, "heads": 1, "kv_heads": 1, "context": 8192}
    model = msgspec.structs.replace(manifest().model, **narrow)
    data = DataSpec("text", "long", 10**6, "0" * 64)
    fields = {"model": model, "sequences_per_microbatch": sequences, "data": data}
    if fits:
        assert decode_manifest(encode_manifest(changed(fields))).sequences_per_microbatch
        return
    with pytest.raises(RemoteProtocolError, match="larger than a frame"):
        decode_manifest(encode_manifest(changed(fields)))


LLAMA = {"architecture": "llama", "heads": 8, "kv_heads": 8}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("model.kv_heads", 2, "gpt needs kv_heads == heads"),
        ("model.heads", 3, "width 64 is not a multiple of heads"),
        ("model.width", 65_540, "width must be"),
        ("model.vocab", 2**20 + 1, "vocab must be"),
        ("model.bias", False, "bias"),
        ("model", LLAMA | {"kv_heads": 3}, "multiple of kv_heads"),
        ("model", LLAMA | {"heads": 64, "kv_heads": 64}, "even head width"),
        ("model", LLAMA | {"rope_theta": 1.0}, "rope_theta"),
        ("model", LLAMA | {"bias": True}, "no biases"),
        ("optimizer.lr", 11.0, "lr <= 10"),
        ("optimizer.min_lr", 0.002, "min_lr <= lr"),
        ("optimizer.warmup_steps", 2001, "warmup_steps <= decay_steps"),
        ("optimizer.eps", 2.0, "eps <= 1"),
        ("optimizer.weight_decay", 11.0, "weight_decay <= 10"),
        ("optimizer.kind", "adamw", "leave it out"),
        ("optimizer.kind", "pickle", "unknown"),
        ("data.tokenizer", "bytes", "leave it out"),
        ("data.tokenizer", "../x", "unknown"),
    ],
)
def test_what_no_worker_could_open_is_refused(path: str, value: object, words: str) -> None:
    if isinstance(value, dict):
        value = msgspec.to_builtins(manifest().model) | value
    encoded = edited(path, value)
    with pytest.raises(RemoteProtocolError, match=words):
        decode_manifest(encoded)


def test_a_stage_without_a_layer_is_refused() -> None:
    stages = tuple(msgspec.structs.replace(manifest().stages[0], layers=n) for n in (0, 4))
    with pytest.raises(RemoteProtocolError, match="stages"):
        decode_manifest(encode_manifest(changed({"stages": stages})))


@pytest.mark.parametrize("claimed", [1, 116_000])
def test_parameters_are_those_of_the_model(claimed: int) -> None:
    """The fit of a stage and the time of its download are computed from them."""
    first, last = manifest().stages
    stages = first, msgspec.structs.replace(last, parameters=claimed)
    with pytest.raises(RemoteProtocolError, match=f"stage 1 has {last.parameters} parameters"):
        decode_manifest(encode_manifest(changed({"stages": stages})))


def test_a_vocabulary_of_more_than_two_bytes_is_accepted() -> None:
    """Its tokens are of four bytes; `test_compute_passes` opens and trains such a stage."""
    model = msgspec.structs.replace(manifest().model, vocab=70_000)
    assert decode_manifest(encode_manifest(changed({"model": model}))).model.vocab == 70_000


def test_only_the_canonical_spelling_is_accepted() -> None:
    encoded = encode_manifest(manifest())
    refuse(encoded.replace(b'"seed":7', b'"seed": 7'), "manifest-not-canonical")
    refuse(encoded.replace(b'"seed":7', b'"seed":7,"seed":7'), "manifest-not-canonical")
    refuse(encoded.replace(b'"lr":0.001', b'"lr":1e-3'), "manifest-not-canonical")
    refuse(edited("optimizer.min_lr", 0), "manifest-not-canonical")


def test_a_manifest_that_is_too_long_is_not_parsed() -> None:
    refuse(b"[" * (MAX_MANIFEST_BYTES + 1), "manifest-too-long")
    refuse(b"[" * MAX_MANIFEST_BYTES, "manifest-malformed")


@given(st.binary(max_size=300))
def test_garbage_is_refused(encoded: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_manifest(encoded)


def test_the_founder_signs() -> None:
    encoded, signature = signer(1).sign_manifest(manifest(peer(1)))
    assert verify_manifest(encoded, signature) == manifest(peer(1))


def test_nobody_signs_for_another_founder() -> None:
    with pytest.raises(LocalProtocolError):
        signer(2).sign_manifest(manifest(peer(1)))


def test_wrong_and_missing_signatures_are_refused() -> None:
    encoded, signature = signer(1).sign_manifest(manifest(peer(1)))
    other, _ = signer(1).sign_manifest(manifest(peer(1), seed=8))
    forged = signer(2).sign("manifest", encoded, swarm_id(encoded)).signature
    flipped = bytes([signature[0] ^ 1]) + signature[1:]
    for bad in (b"", b"\0" * 64, signature[:63], signature + b"\0", forged, flipped):
        with pytest.raises(RemoteProtocolError, match="bad-signature"):
            verify_manifest(encoded, bad)
    with pytest.raises(RemoteProtocolError, match="bad-signature"):
        verify_manifest(other, signature)


def test_a_founder_that_is_no_peer_id_is_refused() -> None:
    encoded = encode_manifest(manifest(founder="somebody"))  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError, match="bad-signer"):
        verify_manifest(encoded, b"\0" * 64)
