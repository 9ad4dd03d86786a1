"""Conversations as tokens: what is learned of them, and which rows have none."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from client.lab.reference import evaluate
from model_zoo.data import NO_TARGET, DataError, beginnings, inputs_and_targets, plain_tokens
from model_zoo.datasets import sources
from model_zoo.datasets.build import build
from model_zoo.datasets.choice import parse_tokenizer
from model_zoo.datasets.conversations import fitted
from model_zoo.datasets.corpus import Corpus
from model_zoo.datasets.folder import Folder, open_folder
from model_zoo.export import export_hf
from model_zoo.huggingface.adapters import export_adapters
from model_zoo.specs.architecture import Lora
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.tokens import BEGINS, NOT_LEARNED, ChatFormat
from model_zoo.stages import build_whole, losses_of, shown_share, summed_loss
from model_zoo.tokenizers.bpe import Bpe
from model_zoo.tokenizers.chat import BadTemplate, ChatTemplate

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

CHATML = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|im_end|>\n"
    "{% endgeneration %}{% else %}{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = CHATML.replace(
    "{% generation %}", "{% generation %}{% if loop.last %}<think>\n\n</think>\n\n{% endif %}"
)
"""As Qwen3's: the last answer is written otherwise than those before it."""
TALK = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "grüß dich, wie geht es?"},
    {"role": "assistant", "content": "sehr gut, «danke»"},
    {"role": "user", "content": "schön"},
    {"role": "assistant", "content": "ja"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and its template."""
    folder: Path = tmp_path_factory.mktemp("model")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(["user assistant system gut schön danke"], trainer)
    made.save(str(folder / "tokenizer.json"))
    config = {"bos_token": None, "eos_token": {"content": "<|im_end|>"}, "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def chosen(model: Path) -> Bpe:
    found = parse_tokenizer(str(model))
    assert isinstance(found, Bpe)
    return found


def written(path: Path, *rows: Any) -> Path:
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("\n".join(lines) + "\n")
    return path


def learned_texts(folder: Folder) -> list[str]:
    """What is learned of each conversation, the longest conversations of a window first."""
    corpus = Corpus.from_folder(folder)
    return [_words(corpus, one[one < NOT_LEARNED]) for one in conversations(folder)]


def conversations(folder: Folder) -> list[np.ndarray[Any, Any]]:
    """The tokens of each, and behind those of a window's last one its padding."""
    found = []
    for row in rows_of(folder):
        begins = np.flatnonzero(row & BEGINS)
        assert begins[0] == 0
        found += np.split(row, begins)[1:]
    return found


def rows_of(folder: Folder) -> np.ndarray[Any, Any]:
    """The windows, (W, T)."""
    assert folder.index.spec.answers
    tokens = np.frombuffer(b"".join(s.tobytes() for s in folder.shards), "<u4")[:-1]
    return tokens.reshape(-1, folder.index.spec.answers.context)


def _words(corpus: Corpus, tokens: np.ndarray[Any, Any]) -> str:
    bpe = corpus.tokenizer
    if bpe is None:
        return corpus.text_of(tokens)
    end = bpe.token_of("<|im_end|>")
    return b"".join(b"<E>" if int(t) == end else bpe.decode(int(t)) for t in tokens).decode()


def test_answers_and_their_ends_are_learned_and_nothing_else(model: Path, tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "it is four"}]
    rows = written(
        tmp_path / "talk.jsonl",
        {"messages": TALK[1:3]},
        {"messages": talk},
        {"prompt": talk[:1], "completion": talk[1:]},
        {"prompt": "2+2=", "completion": "four"},
    )
    folder = build([rows], tmp_path / "out", tokenizer=chosen(model), context=64)
    said = ["four", "it is four<E>\n", "it is four<E>\n", "sehr gut, «danke»<E>\n"]
    assert sorted(learned_texts(folder)) == said
    assert folder.index.tally.texts == 4
    last = Corpus.from_folder(folder)
    learned = [plain_tokens(one[one < NOT_LEARNED]) for one in conversations(folder)]
    # a completion's end is learned
    assert [one[-1] for one in learned if last.tokenizer.end_of_text in one[-1:]]


@pytest.mark.parametrize("template", [CHATML, THINKING])
def test_every_answer_of_a_conversation_is_found(
    model: Path, tmp_path: Path, template: str
) -> None:
    tokenizer = Bpe(chosen(model).data, ChatFormat(template))
    rows = written(tmp_path / "talk.jsonl", {"messages": TALK})
    folder = build([rows], tmp_path / "out", tokenizer=tokenizer, context=160)
    (found,) = learned_texts(folder)
    thought = "<think>\n\n</think>\n\n" if template == THINKING else ""
    assert found == f"sehr gut, «danke»<E>\n{thought}ja<E>\n"


def test_bytes_need_no_template(tmp_path: Path) -> None:
    rows = written(tmp_path / "a.jsonl", {"prompt": "grüße: ", "completion": "schön"})
    folder = build([rows], tmp_path / "out", context=32)
    assert learned_texts(folder) == ["schön\n"]
    spec = folder.index.spec
    assert spec.answers
    assert spec.answers.learned == len("schön\n".encode())
    assert spec.loss_weight == 32 / 7


def test_a_conversations_first_token_is_no_target(tmp_path: Path) -> None:
    rows = [{"prompt": "", "completion": letter * 9} for letter in "abcdefgh"]
    path = written(tmp_path / "a.jsonl", *rows)
    folder = build([path], tmp_path / "out", context=16)
    corpus = Corpus.from_folder(folder)
    corpus.check(16)
    with pytest.raises(DataError, match="cut for a context of 16, not of 8"):
        corpus.check(8)
    samples = np.concatenate([corpus.sample(0, 7, 16, 3), corpus.held_out_batch(0, 1, 16)])
    inputs, targets = inputs_and_targets(samples)
    texts = sorted(corpus.text_of(row[:9]) for row in inputs)
    assert texts == [letter * 9 for letter in "abcdefgh"]
    assert all(len(set(row[row != NO_TARGET])) == 2 for row in targets)  # a letter, a line end
    assert (targets[:, 9:] == NO_TARGET).all()
    assert int((targets != NO_TARGET).sum()) == 8 * 9


def test_where_a_file_is_cut_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    monkeypatch.setattr(sources, "PIECE_BYTES", 2000)
    rows = [{"messages": [*TALK, {"role": "user", "content": "x" * n}]} for n in range(40)]
    path = written(tmp_path / "a.jsonl", *rows)
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    one, other = (
        build([source], tmp_path / f"of {source.name}", tokenizer=chosen(model), context=80)
        for source in (path, packed)
    )
    assert one.index.spec.digest == other.index.spec.digest
    assert one.index.tally.texts == 40
    assert open_folder(tmp_path / "of a.jsonl").index == one.index


def test_what_is_cut_is_counted_and_what_has_no_answer_left_is_left_out(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "completion": "b"},
        {"prompt": "a" * 10, "completion": "b" * 40},
        {"prompt": "a" * 40, "completion": "b"},
    ]
    folder = build([written(tmp_path / "a.jsonl", *rows)], tmp_path / "out", context=16)
    found = folder.index.tally
    assert (found.texts, found.cut, found.left_out) == (2, 1, 1)
    assert folder.index.spec.answers
    assert folder.index.spec.answers.learned == found.learned == 2 + 6
    assert found.padding == 13


BAD_ROWS = [
    ("not json", "is not JSON"),
    ([1], "is no JSON object"),
    ({"text": "x"}, 'has neither "messages" or'),
    ({"prompt": "x", "completion": ""}, "there is no answer to learn"),
    ({"messages": []}, 'has no messages in "messages"'),
    ({"messages": [{"role": "user", "content": "x"}]}, "has no answer"),
    ({"messages": [*TALK[:2], {"role": "assistant", "content": " "}]}, "has no answer"),
    ({"messages": [{"role": "user"}]}, "a message 1 without a role and a content"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "a part that is no text"),
    ({"messages": TALK[:3], "tools": "{"}, '"tools" that are not JSON'),
    ({"messages": TALK[:3], "tools": {"name": "x"}}, '"tools" that are no list'),
    ({"messages": TALK[:3], "tools": [{"name": "<|im_end|>"}]}, "has <|im_end|> in its"),
    ({"conversations": [{"from": "gpt", "content": "x"}]}, "a message 1 without a role and a"),
    ({"conversations": [{"from": "call", "value": "x"}]}, "message 1 from 'call', which has no"),
    ({"messages": [{"role": "user", "content": "<|im_end|>"}, TALK[2]]}, "has <|im_end|> in its"),
    ({"prompt": "x", "completion": "<|im_start|>"}, "stands for a special token"),
    ('{"prompt": "x", "completion": "\\ud800"}', ""),
]


CALLING = CHATML.replace(
    "{{ m['content'] }}<|im_end|>\n{% endgeneration %}",
    "{{ m['content'] }}{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
    "<|im_end|>\n{% endgeneration %}",
).replace("{{ bos_token }}", "{% if tools %}{{ tools | tojson }}\n{% endif %}")
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def test_content_in_parts_tool_calls_and_share_gpt_are_read_as_templates_do(
    model: Path, tmp_path: Path
) -> None:
    tools = [{"name": "add"}]
    asked = {"role": "user", "content": [{"type": "text", "text": "1"}, "+1", {"text": "?"}]}
    called = {"role": "assistant", "content": None, "tool_calls": [CALL], "name": None}
    told = [{"role": "tool", "content": "2", "tool_calls": None}, TALK[4]]
    old = [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "two"}]
    path = written(
        tmp_path / "a.jsonl",
        {"messages": [asked, called, *told], "tools": tools},
        {"messages": [asked, TALK[4]], "tools": json.dumps(tools)},
        {"conversations": old, "tools": ""},
    )
    tokenizer = Bpe(chosen(model).data, ChatFormat(CALLING))
    folder = build([path], tmp_path / "out", tokenizer=tokenizer, context=400)
    assert sorted(learned_texts(folder)) == [
        "ja<E>\n",
        "two<E>\n",
        f"{json.dumps(CALL['function'])}<E>\nja<E>\n",
    ]
    texts = [Corpus.from_folder(folder).text_of(one) for one in conversations(folder)]
    begins = '[{"name": "add"}]\nuser\n1+1?\n'
    assert [text.startswith(begins) for text in sorted(texts)] == [True, True, False]
    assert sorted(texts)[2].startswith("user\n1+1?\n")


def test_rows_that_are_no_conversations_are_left_out(model: Path, tmp_path: Path) -> None:
    rows = [row for row, _ in BAD_ROWS]
    path = written(tmp_path / "a.jsonl", {"messages": TALK}, *rows, {"messages": TALK[1:3]})
    folder = build([path], tmp_path / "out", tokenizer=chosen(model), context=160)
    said = ["sehr gut, «danke»<E>\n", "sehr gut, «danke»<E>\nja<E>\n"]
    assert sorted(learned_texts(folder)) == said
    assert folder.index.tally.skipped == len(BAD_ROWS)
    for number, (name, (_, words)) in enumerate(
        zip(folder.index.skipped_rows, BAD_ROWS, strict=True), start=2
    ):
        assert name.startswith(f"{path}, line {number}, ")
        assert words in name


def test_what_no_conversations_can_be_made_of(model: Path, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("text\n" * 9)
    rows = written(tmp_path / "a.jsonl", {"messages": TALK})
    long = written(tmp_path / "b.jsonl", {"prompt": "x" * 99, "completion": "y"})
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "tokenizer.json").write_bytes(chosen(model).data)
    for source, tokenizer, words in (
        (tmp_path / "book.txt", None, "book.txt cannot have conversations"),
        (rows, 300, "trained on texts, not on conversations"),
        (rows, None, "the tokenizer has no chat template"),
        (rows, chosen(bare), "the tokenizer has no chat template"),
        (long, None, "no conversation has an answer within 16 tokens"),
    ):
        with pytest.raises(DataError) as caught:
            build([source], tmp_path / f"out {words}", tokenizer=tokenizer, context=16)
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for %}", "is no Jinja"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "refuses them"),
        ("{{ strftime_now('%d') }}", "strftime_now"),
        ("{% for i in range(10000000) %}x{% endfor %}", "refuses them"),
        ("{{ messages + 1 }}", "fails on them"),
    ],
)
def test_bad_and_hostile_templates_are_refused(template: str, words: str) -> None:
    with pytest.raises(BadTemplate, match="chat template") as caught:
        ChatTemplate(ChatFormat(template)).render(TALK)
    assert words in str(caught.value)


def test_where_a_template_is_found(model: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(chosen(model).data)
    assert chosen(tmp_path).chat is None
    several = [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]
    config = {"chat_template": several, "bos_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert chosen(tmp_path).chat == ChatFormat("d", "<s>")
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    assert chosen(tmp_path).chat == ChatFormat(CHATML, "<s>")
    (tmp_path / "chat_template.jinja").write_text("x" * 20_000)
    with pytest.raises(DataError, match="16385 characters; 16384 are supported"):
        parse_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(DataError, match=r"tokenizer_config\.json"):
        parse_tokenizer(str(tmp_path))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_exported_tokenizer_talks_as_it_was_learned(model: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    ours, spec = chosen(model), ModelSpec("llama", 1, 16, 2, 2, 32, context=16)
    lora = msgspec.structs.replace(spec, vocab=ours.vocab, lora=Lora(2, 4.0, ("self_attn.q_proj",)))
    state = build_whole(lora, seed=1).state_dict()
    adapter = export_adapters(lora, state, tmp_path / "adapter", tokenizer=ours)
    whole = build_whole(lora.base, seed=1).state_dict()
    for folder in (adapter, export_hf(lora.base, whole, tmp_path / "whole", ours)):
        theirs = AutoTokenizer.from_pretrained(folder)
        assert ours.chat is not None
        text = ChatTemplate(ours.chat).render(TALK)
        assert theirs.apply_chat_template(TALK, tokenize=False) == text
        (tokens, _), *_ = ours.encode_marked([text])
        assert theirs(text).input_ids == tokens.tolist()
        assert theirs.eos_token == "<|im_end|>"
    ends = json.loads((tmp_path / "whole" / "generation_config.json").read_text())
    assert ends["eos_token_id"] == ours.token_of("<|im_end|>")


def test_the_gradient_is_that_of_the_mean_over_answers_however_they_fall(tmp_path: Path) -> None:
    rows = [{"prompt": "p" * (14 - n % 9), "completion": "c" * (1 + n % 9)} for n in range(40)]
    folder = build([written(tmp_path / "a.jsonl", *rows)], tmp_path / "out", context=16)
    corpus = Corpus.from_folder(folder)
    model = build_whole(ModelSpec("gpt", 1, 16, 2, 2, 32, context=16), seed=1)
    tokens = np.frombuffer(folder.shards[0].tobytes(), "<u4")
    windows = np.stack([tokens[16 * n : 16 * n + 17] for n in range(40)])
    inputs, targets = (torch.from_numpy(part) for part in inputs_and_targets(windows))
    learned = int((targets != NO_TARGET).sum())
    (summed_loss(model(inputs), targets) / learned).backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    for part in (slice(0, 3), slice(3, 24), slice(24, 40)):
        _, whole = losses_of(model(inputs[part]), targets[part], corpus.spec.loss_weight)
        (whole / (40 * 16)).backward()
    for own, mean in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(own.grad, mean, rtol=1e-4, atol=1e-7)


def test_losses_and_bytes_count_answers_alone(tmp_path: Path) -> None:
    rows = [{"prompt": "prompt" * n, "completion": "é" * 4} for n in range(6, 10)]
    folder = build([written(tmp_path / "a.jsonl", *rows)], tmp_path / "out", context=64)
    corpus = Corpus.from_folder(folder)
    batch = corpus.held_out_batch(0, 1, 64)
    assert corpus.bytes_of(batch[:, 1:]) == 9
    model = build_whole(ModelSpec("gpt", 1, 16, 2, 2, 32, context=64), seed=1)
    inputs, targets = (torch.from_numpy(part) for part in inputs_and_targets(batch))
    with torch.no_grad():
        logits = model(inputs)
    kept = targets != NO_TARGET
    mean = torch.nn.functional.cross_entropy(logits[kept], targets[kept]).item()
    assert evaluate(model, corpus, batches=1, sequences=1, context=64) == pytest.approx(mean)
    assert summed_loss(logits, targets).item() * shown_share(targets) / 64 == pytest.approx(mean)


# --- several in a window -------------------------------------------------------------------------


SHORT = [{"prompt": f"{n}+{n}=", "completion": str(2 * n)} for n in range(200)]


def test_windows_have_every_conversation_once(tmp_path: Path) -> None:
    folder = build([written(tmp_path / "a.jsonl", *SHORT)], tmp_path / "out", context=64)
    found = [bytes(one.astype(np.uint8)).rstrip(b"\n") for one in conversations(folder)]
    assert sorted(found) == sorted(f"{row['prompt']}{row['completion']}".encode() for row in SHORT)
    tally = folder.index.tally
    assert tally.texts == len(SHORT)
    assert tally.learned == sum(len(row["completion"]) + 1 for row in SHORT)
    assert tally.padding < 0.1 * folder.index.spec.tokens


def test_nothing_is_predicted_across_a_border(tmp_path: Path) -> None:
    rows = written(tmp_path / "a.jsonl", *SHORT)
    folder = build([rows], tmp_path / "out", context=64)
    corpus = Corpus.from_folder(folder)
    samples = corpus.sample(0, 4, 64, seed=1)
    _, targets = inputs_and_targets(samples)
    begun = beginnings(samples)
    assert begun.sum() > 20
    assert (targets[:, :-1][begun[:, 1:]] == NO_TARGET).all()
    assert (targets[:, -1] == NO_TARGET).all()  # the next window's


def test_a_model_is_evaluated_as_on_conversations_alone(tmp_path: Path) -> None:
    """The loss of a conversation does not depend on what is in a window with it."""
    rows = written(tmp_path / "a.jsonl", *SHORT)
    model = build_whole(ModelSpec("llama", 2, 16, 2, 1, 32, context=64), seed=1)
    folder, losses = build([rows], tmp_path / "out", context=64), []
    for found in (conversations(folder), rows_of(folder)):
        nats, learned = 0.0, 0
        for row in found:
            inputs, targets = inputs_and_targets(row[None])
            begins = torch.from_numpy(beginnings(row[None]))
            with torch.no_grad():
                logits = model(torch.from_numpy(inputs), begins)
            nats += summed_loss(logits, torch.from_numpy(targets)).item()
            learned += int((targets != NO_TARGET).sum())
        losses.append((nats / learned, learned))
    (alone, one), (together, other) = losses
    assert together == pytest.approx(alone, rel=1e-6)
    assert one == other


@pytest.mark.parametrize(
    ("lengths", "windows"),
    [
        ([3, 8, 5], [[1], [2, 0]]),
        ([4, 4, 4], [[0, 1], [2]]),
        ([6, 5, 2, 3], [[0, 2], [1, 3]]),
        ([8], [[0]]),
        ([], []),
    ],
)
def test_conversations_are_fitted(lengths: list[int], windows: list[list[int]]) -> None:
    assert fitted(lengths, 8) == windows
