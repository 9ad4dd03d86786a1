"""Our codec, or hivemind's, on the same tensors with one thread.

    python -m tests.bench.rivals.codec_process ours|hivemind REPEATS

Prints a line of JSON: by codec and source what ``codec_clock`` measures, or the error in words.
"""

import json
import sys

import torch

from tests.bench.rivals.codec_clock import SHAPE, SOURCES, Codec, measured, tensor


def ours() -> dict[str, Codec]:
    """Return the wire codecs as they cross a boundary; ``sealed``: with both ends' digests."""
    from client.compute.codec import decode, encode
    from client.compute.payload import check_seal, seal

    def pack(numbers: torch.Tensor) -> memoryview:
        return encode(numbers, "s8", direction="forward")

    def unpack(payload: memoryview) -> torch.Tensor:
        return decode(payload, SHAPE)

    def pack_sealed(numbers: torch.Tensor) -> memoryview:
        payload = pack(numbers)
        seal(payload)
        return payload

    def unpack_sealed(payload: memoryview) -> torch.Tensor:
        check_seal(payload)
        return unpack(payload)

    return {"ours": (pack, unpack), "ours sealed": (pack_sealed, unpack_sealed)}


def hivemind() -> dict[str, Codec]:
    """Return hivemind's, as its averager and experts use them."""
    from hivemind.compression import (
        BlockwiseQuantization,
        CompressionInfo,
        Float16Compression,
        Quantile8BitQuantization,
        Uniform8BitQuantization,
    )

    def of(codec: object) -> Codec:
        def pack(numbers: torch.Tensor) -> object:
            return codec.compress(numbers, CompressionInfo.from_tensor(numbers))

        return pack, codec.extract

    return {
        "hivemind uniform 8 bit": of(Uniform8BitQuantization()),
        "hivemind quantile 8 bit": of(Quantile8BitQuantization()),
        "hivemind blockwise 8 bit": of(BlockwiseQuantization()),
        "hivemind fp16": of(Float16Compression()),
    }


def main() -> None:
    """Measure and print."""
    side, repeats = sys.argv[1:]
    torch.set_num_threads(1)
    answer: dict[str, object] = {}
    for name, codec in (ours() if side == "ours" else hivemind()).items():
        try:
            answer[name] = {s: measured(codec, tensor(s), int(repeats)) for s in SOURCES}
        except ImportError as error:
            answer[name] = {"failed": str(error).strip()}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
