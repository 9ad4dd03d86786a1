"""The worker process: reads requests from its node, executes them, writes replies.

Started as `python -m client.compute.worker --fd N --parent N`; imports torch, never libp2p
or trio. It lives as long as its node: it ends
when the socket closes, and on Linux the kernel kills it when the node dies, even in the middle of a
long computation.
"""

import argparse
import ctypes
import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import msgspec

from client.compute.channel import Channel, NodeGone
from client.compute.errors import FrameError
from client.compute.payload import Buffer
from client.compute.requests import Answer, AnyRequest, Failed
from client.garbage import uncollected

_PR_SET_PDEATHSIG = 1

_requests = msgspec.msgpack.Decoder(AnyRequest)


def serve(channel: Channel) -> None:
    """Execute requests until the node is gone.

    Raises:
        FrameError: the node sent bytes that are no frame.
    """
    with uncollected():
        from client.compute.executor import Executor
    executor = Executor(owns_process=True)
    try:
        while True:
            received = channel.receive()
            answer = partial(_answer, channel, received.id)
            try:
                request: AnyRequest = _requests.decode(received.message)
            except msgspec.DecodeError as error:
                answer(Failed(kind="shape", message=f"bad request: {error}"), ())
            else:
                executor.execute(request, received.payloads, answer)
    except NodeGone:
        executor.close()


def _answer(channel: Channel, number: int, reply: Answer, payloads: Sequence[Buffer]) -> None:
    with suppress(NodeGone):  # `receive` raises it in the thread that can act on it
        try:
            channel.send(number, reply, payloads)
        except NodeGone:
            raise
        except Exception as error:  # in a thread nobody would see it, and the node would wait
            channel.send(number, Failed(kind="internal", message=f"no reply: {error}"), ())


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies (Linux; elsewhere nothing).

    Raises:
        NodeGone: the parent has died already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise NodeGone


def main() -> int:
    """Entry point; the exit status is 0 when the node closed the socket."""
    parser = argparse.ArgumentParser(description="Compute worker of a volunteer; started by it.")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    faulthandler.enable()
    # Ctrl-C, and the SIGTERM of a cluster, reach the node as well, which decides.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        die_with_parent(arguments.parent)
        serve(Channel(socket.socket(fileno=arguments.fd)))
    except NodeGone:
        return 0
    except FrameError as error:
        print(f"worker: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
