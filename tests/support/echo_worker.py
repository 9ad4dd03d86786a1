"""A worker process that sends back what it gets."""

import sys
import textwrap

ECHO = """
    import argparse, socket
    from client.compute.channel import Channel, NodeGone
    from client.compute.requests import Done
    from client.compute.ring import RingReader, RingWriter

    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int)
    parser.add_argument("--rings", type=int, nargs=2)
    parser.add_argument("--parent", type=int)
    arguments = parser.parse_args()
    incoming, outgoing = arguments.rings
    channel = Channel(
        socket.socket(fileno=arguments.fd), RingReader(incoming), RingWriter(outgoing)
    )
    try:
        while True:
            received = channel.receive()
            channel.send(received.id, Done(seconds=received.id), received.payloads)
            channel.release(received)
    except NodeGone:
        pass
"""
ECHO_WORKER = (sys.executable, "-c", textwrap.dedent(ECHO))  # starts without torch, quickly
