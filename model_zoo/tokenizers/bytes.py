"""Every byte is a token."""

from model_zoo.tokenizers.tokenizer import Bytes, Tokenizer, Tokens


class ByteTokenizer(Tokenizer):
    """Needs no table; the text itself is the tokens."""

    def encode(self, text: Bytes) -> Tokens:
        """See `Tokenizer`; nothing is copied."""
        return text

    def decode(self, token: int) -> bytes:
        """See `Tokenizer`."""
        return bytes([token])


TOKENIZER = ByteTokenizer()
