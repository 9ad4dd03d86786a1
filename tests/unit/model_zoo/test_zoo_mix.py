"""Mixing data folders: the same tokens one behind the other, whole or not at all."""

import json
import signal
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path
from shutil import disk_usage

import numpy as np
import pytest

from model_zoo.data import DataError, inputs_and_targets
from model_zoo.datasets import mix as mixing
from model_zoo.datasets.build import build
from model_zoo.datasets.corpus import Corpus
from model_zoo.datasets.folder import is_data_folder, open_folder, proven_leaves
from model_zoo.datasets.mix import Choice, mix, parse_choice, whole_weights
from model_zoo.specs.merkle import LEAF_BYTES
from model_zoo.specs.tokens import ChatFormat
from model_zoo.tokenizers.bpe import Bpe

WORDS = {"web": "the quick brown fox\n", "code": "def f(x): return x\n", "talk": "yes! no?\n"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folders of bytes: web has three leaves and a bit, the others less than one."""
    folder = tmp_path_factory.mktemp("made")
    for name, line in WORDS.items():
        text = folder / f"{name}.txt"
        text.write_text("".join(f"{n} {line}" for n in range(17_000 if name == "web" else 900)))
        build([text], folder / name)
    return folder


@pytest.fixture(autouse=True)
def leaf_by_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixing, "_AT_ONCE", 1)


def chosen(made: Path, *texts: str) -> list[Choice]:
    return [parse_choice(f"{made}/{text}") for text in texts]


def _bytes(folder: Path) -> bytes:
    return b"".join(shard.tobytes() for shard in open_folder(folder).shards)


def test_parts_lie_one_behind_the_other(made: Path, tmp_path: Path) -> None:
    found = mix(chosen(made, "web:0.7", "code:0.2", "talk:0.1"), tmp_path / "m")
    assert _bytes(found.path) == b"".join(_bytes(made / name) for name in WORDS)
    assert list(proven_leaves(found))
    assert [(part.name, part.weight) for part in found.index.spec.parts] == [
        ("web", 7),
        ("code", 2),
        ("talk", 1),
    ]
    for part in found.index.spec.parts:
        assert part.digest == open_folder(made / part.name).index.spec.digest
    texts = [open_folder(made / name).index.tally.text_bytes for name in WORDS]
    assert (found.index.tally.text_bytes, found.index.tally.texts) == (sum(texts), 3)


def test_samples_are_those_of_the_parts_alone(made: Path, tmp_path: Path) -> None:
    found = Corpus.from_folder(mix(chosen(made, "web:3", "code:1"), tmp_path / "m"))
    alone = {name: Corpus.from_folder(open_folder(made / name)) for name in ("web", "code")}
    seen = Counter[str]()
    for number in range(400):
        part = found.spec.part_of(number)
        expected = alone[part.name].sample(seen[part.name], 1, 64, seed=5)
        assert found.sample(number, 1, 64, seed=5).tolist() == expected.tolist()
        held_out = alone[part.name].held_out_batch(seen[part.name], 1, 64)
        assert found.held_out_batch(number, 1, 64).tolist() == held_out.tolist()
        seen[part.name] += 1
    assert seen == {"web": 300, "code": 100}


INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from model_zoo.datasets import mix as mixing

mixing._AT_ONCE = 1
told = []

def tell(*progress):
    told.append(progress)
    if len(told) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

mixing.mix([mixing.parse_choice(text) for text in sys.argv[2:]], Path(sys.argv[1]), tell=tell)
"""


def test_a_killed_mixture_goes_on_where_it_was(made: Path, tmp_path: Path) -> None:
    whole = mix(chosen(made, "web:1", "code:2"), tmp_path / "whole")
    out = tmp_path / "out"
    command = [sys.executable, "-c", INTERRUPTED, str(out), f"{made}/web:1", f"{made}/code:2"]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGKILL
    assert not is_data_folder(out)
    with pytest.raises(DataError, match=r"no index\.json"):
        open_folder(out)
    with (out / "shard-00000.bin").open("ab") as file:
        file.write(b"what was not noted")
    told: list[tuple[int, int]] = []
    found = mix(chosen(made, "web:1", "code:2"), out, tell=lambda *now: told.append(now))
    assert found.index.spec.digest == whole.index.spec.digest
    assert list(proven_leaves(found))
    assert told[0][0] == 2 * LEAF_BYTES
    assert told[-1] == (found.index.spec.size_bytes,) * 2
    told.clear()
    mix(chosen(made, "web:1", "code:2"), out, tell=lambda *now: told.append(now))
    assert told == []
    with pytest.raises(DataError, match="is made of other data"):
        mix(chosen(made, "web:1", "code:3"), out)


@pytest.mark.parametrize("name", ["shard-00000.bin", "leaves.bin"])
def test_what_was_noted_and_is_lost_is_not_filled_with_zeros(
    made: Path, tmp_path: Path, name: str
) -> None:
    out = mix(chosen(made, "web:1", "code:1"), tmp_path / "m").path
    (out / "index.json").unlink()
    lost = out / name
    lost.write_bytes(lost.read_bytes()[:31])
    with pytest.raises(DataError, match="has lost what was written: remove"):
        mix(chosen(made, "web:1", "code:1"), out)
    lost.unlink()
    with pytest.raises(DataError, match="has lost what was written: remove"):
        mix(chosen(made, "web:1", "code:1"), out)
    assert not is_data_folder(out)


def test_a_disk_without_room_is_said_before_anything_is_copied(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = disk_usage(tmp_path)._replace(free=100_000)
    with monkeypatch.context() as patch:
        patch.setattr(mixing.shutil, "disk_usage", lambda _: small)
        with pytest.raises(DataError, match=r"needs 0\.0 GB more.*free space, or choose"):
            mix(chosen(made, "web:1", "code:1"), tmp_path / "m")
    assert is_data_folder(mix(chosen(made, "web:1", "code:1"), tmp_path / "m").path)


def test_a_damaged_part_is_not_copied(made: Path, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("abcdefgh\n" * 50_000)
    folder = build([text], tmp_path / "a").path
    shard = folder / "shard-00000.bin"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + b"x")
    choices = [parse_choice(f"{made}/code:1"), parse_choice(f"{folder}:1")]
    with pytest.raises(DataError, match="a is damaged in its part 3 of 256 KiB"):
        mix(choices, tmp_path / "m")
    assert not is_data_folder(tmp_path / "m")
    shard.write_bytes(data)
    found = mix(choices, tmp_path / "m")  # restored, it goes on
    assert list(proven_leaves(found))
    (folder / "leaves.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"leaves\.bin is damaged"):
        mix(choices, tmp_path / "n")


@pytest.mark.parametrize(
    "weight",
    ["0", "0.0", "-1", "nan", "inf", "", "1e3", "1/3", "x", "1.", ".5", "١", "1" * 13],
)
def test_what_is_no_weight_is_refused(made: Path, weight: str) -> None:
    with pytest.raises(DataError, match=r"is no weight of .*web: take a number above 0"):
        parse_choice(f"{made}/web:{weight}")


def test_a_folder_may_have_a_colon_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "a:3").mkdir()
    with pytest.raises(DataError, match="a:3 has no weight"):
        parse_choice(f"{tmp_path}/a:3")
    assert parse_choice(f"{tmp_path}/a:3:2.5") == (tmp_path / "a:3", Fraction(5, 2))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (["0.7", "0.2", "0.1"], [7, 2, 1]),
        (["70", "20", "10"], [7, 2, 1]),
        (["1.50", "3"], [1, 2]),
        (["67", "15", "4.5", "4.5", "4.5", "2.5", "2"], [134, 30, 9, 9, 9, 5, 4]),
        (["0.00001", "0.5"], [1, 50_000]),
    ],
)
def test_one_mixture_has_one_spelling(weights: list[str], expected: list[int]) -> None:
    assert whole_weights(list(map(Fraction, weights))) == expected


def test_folders_that_do_not_go_together(made: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    out = tmp_path / "m"
    rows = tmp_path / "talk.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": "p", "completion": f"{n}"}) for n in range(9)))
    build([rows], tmp_path / "chat", context=16)
    build([rows], tmp_path / "longer", context=32)
    build([made / "web.txt"], tmp_path / "bpe", tokenizer=300)
    build([made / "code.txt"], tmp_path / "other", tokenizer=300)
    web, chat = str(made / "web"), str(tmp_path / "chat")
    bpe = str(tmp_path / "bpe")
    for texts, words in (
        ([web], "2 to 64 folders, not 1"),
        ([web] * 65, "2 to 64 folders, not 65"),
        ([web, web], "have the same tokens: name one"),
        ([web, str(tmp_path)], r"no index\.json"),
        ([web, bpe], "different tokenizers"),
        ([bpe, web], "different tokenizers: build one of them again"),
        ([bpe, str(tmp_path / "other")], "different tokenizers"),
        ([web, chat], "different settings of --chat"),
        ([chat, web], "different settings of --chat"),
        ([chat, str(tmp_path / "longer")], "different settings of --context"),
    ):
        with pytest.raises(DataError, match=words):
            mix([parse_choice(f"{text}:1") for text in texts], out)
        assert not out.exists()
    for number, template in enumerate(("{{ messages }}", "{{ messages[0].content }}")):
        tokenizer = Bpe((tmp_path / "bpe" / "tokenizer.json").read_bytes(), ChatFormat(template))
        rows.write_text(rows.read_text() + f'\n{{"prompt": "{number}", "completion": "x"}}')
        build([rows], tmp_path / f"{number}", tokenizer=tokenizer, context=16)
    with pytest.raises(DataError, match="different chat templates"):
        mix(chosen(tmp_path, "0:1", "1:1"), out)
    with pytest.raises(DataError, match=r"too many digits.*round them"):
        mix(chosen(made, "web:0.1234567", "code:2"), out)
    found = mix(chosen(made, "web:1", "code:1"), out)
    with pytest.raises(DataError, match="is a mixture: name the folders"):
        mix([parse_choice(f"{found.path}:1"), parse_choice(f"{made}/talk:1")], tmp_path / "n")
    with pytest.raises(DataError, match="is one of the folders"):
        mix(chosen(made, "web:1", "code:1"), made / "code")


def test_an_index_that_contradicts_itself_is_damaged(made: Path, tmp_path: Path) -> None:
    index = mix(chosen(made, "web:3", "code:1"), tmp_path / "m").path / "index.json"
    index.write_text(index.read_text().replace('"size_bytes":', '"size_bytes":1', 1))
    with pytest.raises(DataError, match="damaged: the parts do not add up"):
        open_folder(tmp_path / "m")


def test_conversations_weigh_as_much_as_what_is_seen_of_them(tmp_path: Path) -> None:
    """Over a cycle of whole epochs the weighted targets are as many as all targets."""
    for name, answer in (("short", "a"), ("long", "abcdefgh")):
        rows = [{"prompt": f"{n:7}", "completion": answer} for n in range(40)]
        path = tmp_path / f"{name}.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        build([path], tmp_path / name, context=16)
    folder = mix(
        [parse_choice(f"{tmp_path}/short:3"), parse_choice(f"{tmp_path}/long:1")], tmp_path / "m"
    )
    corpus = Corpus.from_folder(folder)
    corpus.check(16)
    samples = corpus.sample(0, 4 * 36, 16, seed=1)
    _, targets = inputs_and_targets(samples)
    assert (targets >= 0).sum() * corpus.spec.loss_weight == pytest.approx(targets.size, rel=1e-9)
    assert corpus.spec.loss_weight != (corpus.spec.tokens - 1) / np.sum([40 * 2, 40 * 9])
    assert corpus.spec.masked
