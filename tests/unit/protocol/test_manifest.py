"""Manifests: canonical, self-consistent, signed by their founder."""

import json
from hashlib import blake2b

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from model_zoo.specs.architecture import Experts, Lora, Rope, Scales
from model_zoo.specs.data import Answers, DataSpec
from model_zoo.specs.mixture import Part
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.narrow import Narrow
from model_zoo.specs.optimizer import OPTIMIZERS, OptimizerSpec
from model_zoo.specs.state import StateSpec
from model_zoo.specs.tensor_headers import MAX_HEADER_BYTES
from model_zoo.specs.tokens import ChatFormat, TokenizerSpec
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.limits import MAX_BLOB_BYTES, MAX_STAGE_PARAMETERS
from protocol.manifest import (
    MAX_IMPORTED_STAGES,
    MAX_MANIFEST_BYTES,
    Manifest,
    Policy,
    StageStart,
    decode_manifest,
    encode_manifest,
    swarm_id,
)
from protocol.wire.envelope import verify_manifest
from tests.support.protocol_examples import manifest, peer, signer


def changed(changes: dict[str, object]) -> Manifest:
    """The example with these fields; `shape`: of its model; `ffn`: a model whose first stage has
    34,152,448 parameters and 8192 for each of so many, its last one 63,488 fewer."""
    fields = dict(changes)
    shape = fields.pop("shape", None)
    if ffn := fields.pop("ffn", None):
        shape = {"width": 2048, "ffn_width": ffn}
    if isinstance(shape, dict):
        fields["model"] = replace(manifest().model, **shape)
    costs = {"stages": fields.pop("stages")} if "stages" in fields else {}
    return replace(manifest(**fields), **costs)


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
        at = at.setdefault(folder, {})
    at[leaf] = value
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def test_defaults_are_part_of_the_protocol() -> None:
    """A field with its default is left out, so another default would make another run of the same
    bytes. Who changes one raises ``PROTOCOL`` and writes the new digest here."""
    document = json.loads(encode_manifest(manifest()))
    assert document.keys() == {
        *("created", "data", "founder", "microbatches_per_step", "model", "name", "optimizer"),
        *("protocol", "seed", "sequences_per_microbatch", "stages", "steps"),
    }
    described = (
        *(Manifest, Policy, ModelSpec, Rope, Scales, Experts, Lora, OptimizerSpec, DataSpec),
        *(Answers, Part, TokenizerSpec, ChatFormat),
    )
    defaults = {
        f"{part.__name__}.{field.name}": msgspec.to_builtins(field.default)
        for part in described
        for field in msgspec.structs.fields(part)
        if field.default is not msgspec.NODEFAULT
    }
    assert blake2b(json.dumps(defaults).encode(), digest_size=8).hexdigest() == "4d908afa3fe7d693"


def test_the_largest_manifest_fits() -> None:
    assert len(encode_manifest(manifest(stages=256))) <= MAX_MANIFEST_BYTES
    imported = with_start(manifest(stages=MAX_IMPORTED_STAGES))
    assert len(encode_manifest(imported)) <= MAX_MANIFEST_BYTES


def with_start(base: Manifest, **sizes: int) -> Manifest:
    """The same run, but of an imported model in bf16; `first`: bytes of the first stage's start."""
    starts = [StageStart(2 * stage.parameters + 1000, "ab" * 32) for stage in base.stages]
    starts[0] = StageStart(sizes.get("first", starts[0].size_bytes), "cd" * 32)
    return replace(base, start=tuple(starts))


@pytest.mark.parametrize(
    "other",
    [
        manifest(seed=8),
        manifest(purpose="Haiku in Basque"),
        manifest(aggregation="centred-clipping"),
        with_start(manifest()),
    ],
    ids=["seed", "purpose", "aggregation", "imported weights"],
)
def test_whatever_it_says_makes_another_swarm(other: Manifest) -> None:
    encoded = encode_manifest(other)
    assert decode_manifest(encoded) == other
    assert swarm_id(encoded) != swarm_id(encode_manifest(manifest()))


def test_imported_weights_fit_the_stages() -> None:
    parameters = manifest().stages[0].parameters
    for size in (1, 2 * parameters, 4 * parameters + (3 << 20)):
        refuse(encode_manifest(with_start(manifest(), first=size)), "manifest-inconsistent")
    short = replace(manifest(), start=with_start(manifest()).start[1:])
    refuse(encode_manifest(short), "manifest-inconsistent")
    refuse(edited("start", [[4096, "g" * 64]]), "manifest-malformed")
    many = with_start(manifest(stages=MAX_IMPORTED_STAGES + 1))
    refuse(encode_manifest(many), "manifest-malformed")


def tokens(size: int = 10_000, vocab: int = 256) -> DataSpec:
    """Tokens that bring their tokenizer."""
    tokenizer = TokenizerSpec("1" * 64, 5000, vocab, "0.23.3")
    return DataSpec("book", size, "0" * 64, tokenizer)


def talk(context: int = 32) -> DataSpec:
    """Conversations: windows of four bytes a token, and one token more."""
    answers = Answers(context, learned=400)
    return DataSpec("talk", 4 * (40 * context + 1), "0" * 64, answers=answers)


def mixture(*names: str, tokens: int = 5000) -> DataSpec:
    """As many parts as names, the first twice as heavy as the others."""
    parts = tuple(
        Part(name, 2 * tokens, f"{number:064x}", 2 if number == 0 else 1)
        for number, name in enumerate(names)
    )
    return DataSpec("mixed", 2 * tokens * len(names), "0" * 64, parts=parts)


TALK = msgspec.to_builtins(talk())


def parts(count: int = 2, **changes: object) -> dict[str, object]:
    """A mixture of so many parts, of which the first one is changed."""
    fields: dict[str, object] = msgspec.to_builtins(mixture("a", "b"))
    first, other = fields["parts"]  # type: ignore[misc]
    others = [other | {"digest": f"{number:064x}"} for number in range(1, count)]
    return fields | {"parts": [first | changes, *others], "size_bytes": 10_000 * count}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("protocol", 2),
        ("name", ""),
        ("name", "x" * 65),
        ("purpose", "x" * 161),
        ("seed", 1.5),
        ("stages", []),
        ("model.architecture", "pickle"),
        ("model.width", 2**21),
        ("optimizer.lr", -1),
        ("optimizer.lr", 1e31),
        ("data.source", "http"),
        ("data.digest", "0" * 64 + "\n"),
        ("policy.dual_homing", 1),
        ("microbatches_per_step", 16_385),
        ("steps", 2**41),
        ("compute", "fp16"),
        ("surprise", 1),
        ("model.code", "import os"),
        ("model.heads", 3),
        ("model.vocab", 2**20 + 1),
        ("optimizer.min_lr", 0.002),
        ("optimizer.name", "pickle"),
        ("data", msgspec.to_builtins(tokens()) | {"size_bytes": 10_001}),  # within a token
        ("data", TALK | {"size_bytes": 4 * 32 * 40}),  # no token after the last window
        ("data", TALK | {"answers": {"context": 32, "learned": 39}}),  # a window without one
        ("data", TALK | {"answers": {"context": 32, "learned": 1281}}),
        ("data", TALK | {"answers": {"context": 1, "learned": 1280}}),
        ("data", TALK | {"parts": [{}]}),
        ("data", parts(1)),
        ("data", parts(65)),
        ("data", parts(weight=0)),
        ("data", parts(weight=65_536)),
        ("data", parts() | {"size_bytes": 19_998}),
        ("data", parts(name="x" * 41)),
        ("data", parts(digest="no")),
        ("data", parts(surprise=5)),
    ],
)
def test_values_out_of_range_are_refused(path: str, value: object) -> None:
    refuse(edited(path, value), "manifest-malformed")


def test_the_largest_mixture_fits_a_manifest() -> None:
    large = manifest(data=mixture(*(f"{n:02}" + "\U0001f3b5" * 38 for n in range(64))))
    assert len(encode_manifest(large)) < MAX_MANIFEST_BYTES // 2
    assert decode_manifest(encode_manifest(large)) == large


FIRST, LAST = manifest().stages
LONG_DATA = DataSpec("long", 10**7, "0" * 64)
LONG = {"shape": {"context": 2048, "width": 1024}, "data": LONG_DATA}
THIN = {
    "shape": {"width": 1, "heads": 1, "kv_heads": 1, "context": 131_072},
    "data": LONG_DATA,
}
"""Beside a boundary of one fp32 number a token the two bytes of the token are a lot."""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": talk(context=64)}, "cut for another context"),
        ({"name": "\x1b[31mred"}, "cannot be shown"),
        ({"data": mixture("a", "../b")}, "parts is not the plain name"),
        ({"data": mixture("a", "\x1b[31mb")}, "parts is not the plain name"),
        ({"data": mixture("a", "b", tokens=64)}, "shorter than one sample"),
        ({"data": DataSpec("../etc/passwd", 10_000, "0" * 64)}, "plain name"),
        ({"data": DataSpec(".hidden", 10_000, "0" * 64)}, "plain name"),
        ({"shape": {"layers": 5}}, "add up"),
        ({"shape": {"narrow": Narrow(32, (1,))}}, "boundaries are not between the stages"),
        (LONG | {"sequences_per_microbatch": 4096}, "larger than a frame"),
        (THIN | {"sequences_per_microbatch": 4096}, "larger than a frame"),
        ({"stages": (replace(FIRST, layers=0), replace(FIRST, layers=4))}, "stages"),
        ({"stages": (FIRST, replace(LAST, parameters=1))}, f"has {LAST.parameters} parameters"),
        ({"data": tokens(size=2 * 64)}, "shorter than one sample"),
        ({"data": tokens(vocab=257)}, "257 tokens, and the model's embedding 256"),
        ({"ffn": 911_359}, "too large to be averaged: take more stages"),
        *(
            ({"boundary_codec": codec}, f"{codec} is for sums within a stage.*: take s8")
            for codec in ("q2", "q3", "q4")
        ),
        *(
            ({"averaging_codec": codec, "audit_percent": 3}, f"a lie what {codec} leaves")
            for codec in ("q2", "q3", "q4")
        ),
        ({"aggregation": "median"}, "rule 'median' is unknown here; known are sum.*: install"),
        ({"aggregation": "../x"}, "unknown"),
        ({"purpose": "a\u202eb"}, "no line for people: it has a character"),
        ({"purpose": " a"}, "no line for people: it has blanks"),
    ],
)
def test_contradictions_are_named(changes: dict[str, object], words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        decode_manifest(encode_manifest(changed(changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"data": tokens(size=10**13)},
        {"data": tokens(size=2 * 65)},
        {"data": DataSpec("book", 10_000, "0" * 64)},
        {"data": talk()},
        {"data": mixture("a", "b", tokens=65)},
        {"data": mixture(*"abcdefgh", tokens=10**12)},
        {"ffn": 911_358},
        THIN | {"sequences_per_microbatch": 4095},
    ],
)
def test_the_largest_runs_are_accepted(changes: dict[str, object]) -> None:
    large = changed(changes)
    assert decode_manifest(encode_manifest(large)) == large


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_state_of_the_largest_stage_can_be_copied(optimizer: str) -> None:
    size = StateSpec(optimizer).bytes_per_parameter * MAX_STAGE_PARAMETERS
    assert size + MAX_HEADER_BYTES <= MAX_BLOB_BYTES


def test_only_the_canonical_spelling_is_accepted() -> None:
    encoded = encode_manifest(manifest())
    refuse(encoded.replace(b'"seed":7', b'"seed": 7'), "manifest-not-canonical")
    refuse(encoded.replace(b'"seed":7', b'"seed":7,"seed":7'), "manifest-not-canonical")
    other = edited("optimizer.lr", 0.002)
    refuse(other.replace(b"0.002", b"2e-3"), "manifest-not-canonical")
    refuse(edited("optimizer.min_lr", 0), "manifest-not-canonical")


@pytest.mark.parametrize(
    ("path", "usual"),
    [
        *(("policy", {}), ("policy.redundancy", 2), ("averaging_codec", "s8")),
        *(("evaluation", None), ("audit_percent", 0), ("compute", "fp32"), ("start", [])),
        *(("policy.private", False), ("data.answers", None), ("purpose", "")),
        *(("model.bias", False), ("model.norm_eps", 1e-5), ("model.vocab", 256)),
        *(("model.gelu", "exact"), ("optimizer.name", "adamw"), ("optimizer.lr", 0.001)),
        ("optimizer.eps", 1e-8),
    ],
)
def test_a_default_that_is_written_out_is_another_spelling(path: str, usual: object) -> None:
    refuse(edited(path, usual), "manifest-not-canonical")


def test_a_manifest_that_is_too_long_is_not_parsed() -> None:
    refuse(b"[" * (MAX_MANIFEST_BYTES + 1), "manifest-too-long")
    refuse(b"[" * MAX_MANIFEST_BYTES, "manifest-malformed")


@given(st.binary(max_size=300))
def test_garbage_is_refused(encoded: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_manifest(encoded)


def test_only_the_founders_signature_counts() -> None:
    encoded, signature = signer(1).sign_manifest(manifest(peer(1)))
    assert verify_manifest(encoded, signature) == manifest(peer(1))
    other, _ = signer(1).sign_manifest(manifest(peer(1), seed=8))
    forged = signer(2).sign("manifest", encoded, swarm_id(encoded)).signature
    for text, bad in ((encoded, b""), (encoded, forged), (other, signature)):
        with pytest.raises(RemoteProtocolError, match="bad-signature"):
            verify_manifest(text, bad)
    with pytest.raises(LocalProtocolError):
        signer(2).sign_manifest(manifest(peer(1)))


def test_a_founder_that_is_no_peer_id_is_refused() -> None:
    encoded = encode_manifest(manifest(founder="somebody"))  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError, match="bad-signer"):
        verify_manifest(encoded, b"\0" * 64)


def test_the_first_versions_are_saved_before_the_first_interval_is_over() -> None:
    policy = Policy(checkpoint_every=50)
    saved = [version for version in range(1, 201) if policy.newest_saved(version) == version]
    assert saved == [8, 16, 32, 50, 100, 150, 200]
    assert [policy.newest_saved(step) for step in (0, 7, 31, 49, 149)] == [0, 0, 16, 32, 100]
    often = Policy(checkpoint_every=5)
    assert [v for v in range(1, 21) if often.newest_saved(v) == v] == [5, 10, 15, 20]
