"""A hivemind server with one transformer block, or its client; runs in hivemind's environment.

    python -m tests.bench.rivals.hivemind_chain server SEQUENCES CONTEXT WIDTH HEADS COMPRESSION
    python -m tests.bench.rivals.hivemind_chain client SEQUENCES CONTEXT WIDTH ADDRESS SECONDS N[,N]

The block is ours (``model_zoo``, which needs torch alone). The server prints its address and serves
until its input ends. The client calls forward and backward through ``RemoteExpert``, N at a time
from as many threads, and prints a line of JSON per N: samples per second.
"""

import json
import sys
import threading
import time

import hivemind
import torch
from hivemind.moe.client.expert import create_remote_experts
from hivemind.moe.expert_uid import ExpertInfo
from hivemind.moe.server.server import Server
from hivemind.p2p import PeerID
from hivemind.proto.runtime_pb2 import CompressionType
from hivemind.utils.tensor_descr import BatchTensorDescriptor

from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import slices
from model_zoo.stages import build_stage

UID = "block.0"
MANY = ["/ip4/127.0.0.1/tcp/0"]
HANDLERS = 4
WARM_UP = 4
COMPRESSIONS = {
    "none": CompressionType.NONE,
    "fp16": CompressionType.FLOAT16,
    "uniform8": CompressionType.UNIFORM_8BIT,
}


def serve(sequences: int, context: int, width: int, heads: int, compression: str) -> None:
    """Serve the middle one of three layers."""
    torch.set_num_threads(1)
    spec = ModelSpec("gpt", 3, width, heads, heads, 4 * width, context)
    module = build_stage(spec, slices((1, 1, 1))[1], seed=0)
    packed = COMPRESSIONS[compression]
    schema = BatchTensorDescriptor(context, width, compression=packed)
    backend = hivemind.ModuleBackend(
        UID, module, args_schema=(schema,), outputs_schema=schema, max_batch_size=16 * sequences
    )
    dht = hivemind.DHT(host_maddrs=MANY, start=True)
    server = Server(dht, {UID: backend}, num_connection_handlers=HANDLERS, start=True)
    print(dht.get_visible_maddrs()[0], flush=True)
    sys.stdin.read()
    server.shutdown()
    dht.shutdown()


def call(sequences: int, context: int, width: int, address: str, seconds: float, ns: str) -> None:
    """Call it."""
    torch.set_num_threads(1)
    dht = hivemind.DHT(initial_peers=[address], host_maddrs=MANY, start=True)
    peer = PeerID.from_base58(address.rpartition("/")[2])
    [expert] = create_remote_experts([ExpertInfo(UID, peer)], dht)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn((sequences, context, width), generator=generator)
    gradient = torch.randn((sequences, context, width), generator=generator)

    def once() -> None:
        leaf = hidden.clone().requires_grad_()
        torch.autograd.backward(expert(leaf), gradient)
        assert leaf.grad is not None

    for number in map(int, ns.split(",")):
        for _ in range(WARM_UP):
            once()
        rate = pace(once, number, seconds) * sequences
        print(json.dumps({"in_flight": number, "samples_per_s": rate}), flush=True)
    dht.shutdown()


def pace(once: object, threads: int, seconds: float) -> float:
    """Return calls per second of so many threads."""
    done, begin = [0] * threads, time.monotonic()

    def work(index: int) -> None:
        while time.monotonic() < begin + seconds:
            once()
            done[index] += 1

    workers = [threading.Thread(target=work, args=[index]) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done) / (time.monotonic() - begin)


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "server":
        serve(*map(int, rest[:4]), rest[4])
    else:
        call(*map(int, rest[:3]), rest[3], float(rest[4]), rest[5])
