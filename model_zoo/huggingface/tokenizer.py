"""A tokenizer as files that `AutoTokenizer` loads: `tokenizer.json` and `tokenizer_config.json`."""

import json
from pathlib import Path
from typing import Any

from model_zoo.specs.shards import TOKENIZER
from model_zoo.specs.tokens import ChatFormat
from model_zoo.tokenizers.bpe import Bpe, end_word
from model_zoo.tokenizers.chat import CONFIG


def write_tokenizer(tokenizer: Bpe, out_dir: Path, context: int) -> None:
    """Write both files into a folder that exists, for a model that takes ``context`` tokens; the
    chat template is in the second one.

    Raises:
        OSError: the folder cannot be written.
    """
    (out_dir / TOKENIZER).write_bytes(tokenizer.file)
    (out_dir / CONFIG).write_text(json.dumps(_config(tokenizer, context), indent=2) + "\n")


def _config(tokenizer: Bpe, context: int) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "model_input_names": ["input_ids", "attention_mask"],  # generate() refuses other ones
        "clean_up_tokenization_spaces": False,
    }
    chat = tokenizer.chat or ChatFormat("-")
    words = {"bos_token": chat.bos, "eos_token": end_word(tokenizer)}
    for name, word in words.items():
        if word and tokenizer.token_of(word) is not None:  # else numbered beyond the model's tokens
            config[name] = word
    if tokenizer.chat is not None:
        config["chat_template"] = chat.template
    return config
