"""A tokenizer as people name it: `bytes`, a file, a folder with one, or `train:16384`."""

from codecs import BOM_UTF8
from pathlib import Path

from model_zoo.data import DataError
from model_zoo.specs.tokens import BYTES, MAX_TOKENIZER_BYTES
from model_zoo.tokenizers.bpe import BadTokenizer, Bpe
from model_zoo.tokenizers.chat import BadTemplate, chat_format

_TRAIN = "train:"


def parse_tokenizer(choice: str) -> Bpe | int | None:
    """Return the tokenizer; an int: to be trained with so many tokens; None: bytes.

    Raises:
        DataError: there is no such file, or it cannot be used.
    """
    if choice == BYTES:
        return None
    if choice.startswith(_TRAIN):
        vocab = choice.removeprefix(_TRAIN)
        if not vocab.isdecimal():
            raise DataError(f"{choice!r} names no number of tokens; such as train:16384")
        return int(vocab)
    path = Path(choice).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TOKENIZER_BYTES + 1)
        found = Bpe(data.removeprefix(BOM_UTF8), chat_format(path.parent))
        found.check()
        return found
    except OSError as error:
        known = "bytes, a tokenizer.json, a folder with one, or train:16384"
        raise DataError(f"no tokenizer {path}: {error.strerror}; take {known}") from error
    except (BadTokenizer, BadTemplate) as error:
        raise DataError(f"{path}: {error}") from error
