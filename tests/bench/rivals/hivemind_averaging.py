"""One hivemind peer that averages; runs in hivemind's own environment, imports nothing of ours.

    python hivemind_averaging.py INDEX PEERS ELEMENTS COMPRESSION BANDWIDTH HOST [INITIAL_PEER ...]

Prints its address, then follows its input: `match` finds the group and answers `matched`; `go` runs
the all-reduce and answers how many took part and the moment of its end in monotonic seconds;
`check` answers a digest of the result and, of the first peer, its error against the exact mean,
relative to the mean's norm.
"""

import hashlib
import json
import sys
import time

import hivemind
import torch
from hivemind.averaging.control import AveragingStage
from hivemind.compression import (
    Float16Compression,
    NoCompression,
    Quantile8BitQuantization,
    Uniform8BitQuantization,
)

COMPRESSIONS = {
    "none": NoCompression,
    "fp16": Float16Compression,
    "uniform8": Uniform8BitQuantization,
    "quantile8": Quantile8BitQuantization,
}


def numbers(index: int, turn: int, elements: int) -> torch.Tensor:
    """Return what a peer contributes in a turn."""
    return torch.randn(elements, generator=torch.Generator().manual_seed(1000 * turn + index))


def main() -> None:
    """Average as told."""
    index, peers, elements = map(int, sys.argv[1:4])
    compression, bandwidth = COMPRESSIONS[sys.argv[4]](), float(sys.argv[5])
    torch.set_num_threads(1)
    listen = [f"/ip4/{sys.argv[6]}/tcp/0"]
    dht = hivemind.DHT(initial_peers=sys.argv[7:], host_maddrs=listen, start=True)
    averager = hivemind.DecentralizedAverager(
        [torch.zeros(elements)],
        dht,
        prefix="rivals",
        target_group_size=peers,
        min_group_size=peers,
        min_matchmaking_time=2.0,
        request_timeout=1.0,
        compression=compression,
        bandwidth=bandwidth,
        start=True,
    )
    print(dht.get_visible_maddrs()[0], flush=True)
    turn, control = 0, None
    for line in sys.stdin:
        if line.strip() == "match":
            turn += 1
            with averager.get_tensors() as tensors:
                tensors[0].copy_(numbers(index, turn, elements))
            control = averager.step(wait=False, require_trigger=True, timeout=120)
            while control.stage != AveragingStage.AWAITING_TRIGGER and not control.done():
                time.sleep(0.002)
            print("matched", flush=True)
        elif line.strip() == "go":
            control.allow_allreduce()
            members = len(control.result())
            print(json.dumps({"done": time.monotonic(), "members": members}), flush=True)
        elif line.strip() == "check":
            print(json.dumps(check(averager, index, peers, turn, elements)), flush=True)
    averager.shutdown()
    dht.shutdown()


def check(
    averager: hivemind.DecentralizedAverager, index: int, peers: int, turn: int, elements: int
) -> dict[str, object]:
    """Describe what came out."""
    with averager.get_tensors() as tensors:
        result = tensors[0].clone()
    error = 0.0
    if index == 0:
        exact = sum(numbers(peer, turn, elements) for peer in range(peers)) / peers
        error = float((result - exact).norm() / exact.norm())
    digest = hashlib.blake2b(result.numpy().data, digest_size=16).hexdigest()
    return {"error": error, "digest": digest}


if __name__ == "__main__":
    main()
