"""The long line between hosts: a device all far packets go through, delayed or lost by their pair.

    python wire.py DEVICE < one JSON line: {"ADDRESS ADDRESS": [delay s, jitter s, loss], ...}

The pairs are of IPv4 addresses; ``*`` stands for all others, IPv6 included.

A process of its own, without imports of the project; it makes the TUN device in the namespace it
runs in, says ``ready``, and ends, and the device with it, when its stdin does. Its last line says
what it did. It relays packets where the relay of chaos runs (``client.lab.chaos.relay``)
relays streams: TCP must meet round-trip times and losses at its own ends, or its windows and
retransmissions would not be seen. Rates are not its business.

Where all lines only delay, segments that the sender's kernel handed over together stay together, as
they do between a kernel and its network card: a fifth of the packets at 100 Mb/s, and the wire
leaves the cores to those it is there for. Jitter and loss are drawn for single packets.

Memory: at most ``MAX_HELD_BYTES``; further packets are lost, and counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import heapq
import json
import os
import random
import select
import socket
import struct
import sys
import time

MAX_HELD_BYTES = 256 * 2**20
READS_AT_ONCE = 64
_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_CHECKSUM, _SEGMENTS_IPV4 = 0x01, 0x02
"""The kernel's offloads that we accept (linux/if_tun.h): no checksums, uncut segments."""
_HEADER_BYTES = 10
"""``struct virtio_net_hdr``, how to cut and sum what follows: goes back as it came."""
_MAX_PACKET = _HEADER_BYTES + 65_536
_ADDRESSES = slice(_HEADER_BYTES + 12, _HEADER_BYTES + 20)
"""Source and destination in an IPv4 header (RFC 791, section 3.1)."""
_EVERYBODY = b"*"


class Wire:
    """The packets on their way, each behind its header, by when they arrive."""

    def __init__(self, pairs: dict[bytes, tuple[float, float, float]], seed: int = 0) -> None:
        self._pairs = pairs
        self._held: list[tuple[float, int, bytes]] = []
        self._last = dict.fromkeys(pairs, 0.0)
        self._rng = random.Random(seed)
        self._bytes = self._count = 0
        self.counts = {"passed": 0, "lost": 0, "overflowed": 0, "strange": 0}

    def take(self, packet: bytes, now: float) -> None:
        """Hold a packet until it is due, or lose it."""
        ends = packet[_ADDRESSES]
        if ends not in self._pairs:
            ends = _EVERYBODY
        shape = self._pairs.get(ends)
        if shape is None:
            self.counts["strange"] += 1
            return
        delay, jitter, loss = shape
        if loss and self._rng.random() < loss:
            self.counts["lost"] += 1
        elif self._bytes + len(packet) > MAX_HELD_BYTES:
            self.counts["overflowed"] += 1
        else:
            due = now + delay + (self._rng.random() * jitter if jitter else 0.0)
            due = self._last[ends] = max(due, self._last[ends])
            self._bytes += len(packet)
            self._count += 1
            heapq.heappush(self._held, (due, self._count, packet))

    def due(self, now: float) -> bytes | None:
        """Return a packet that arrives now."""
        if not self._held or self._held[0][0] > now:
            return None
        packet = heapq.heappop(self._held)[2]
        self._bytes -= len(packet)
        self.counts["passed"] += 1
        return packet

    @property
    def next_due(self) -> float | None:
        """When the next packet arrives."""
        return self._held[0][0] if self._held else None


def open_device(name: str, together: bool) -> int:
    """Make the device; it lasts until the returned descriptor is closed.

    Args:
        together: take segments that were handed over together as one packet.
    """
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH14x", name.encode(), flags))
    if together:
        fcntl.ioctl(device, _TUNSETOFFLOAD, _CHECKSUM | _SEGMENTS_IPV4)
    return device


def relay(wire: Wire, device: int, stop: int) -> None:
    """Relay until ``stop`` is readable."""
    clock = time.monotonic
    while True:
        now = clock()
        while (packet := wire.due(now)) is not None:
            with contextlib.suppress(OSError):  # the device's queue is full: lost as anywhere
                os.write(device, packet)
        due = wire.next_due
        timeout = None if due is None else max(0.0, due - clock())
        readable = select.select([device, stop], [], [], timeout)[0]
        if stop in readable:
            return
        if device in readable:
            with contextlib.suppress(BlockingIOError):
                for _ in range(READS_AT_ONCE):
                    wire.take(os.read(device, _MAX_PACKET), clock())


def hurry() -> None:
    """Go before others, so that a busy machine does not lengthen delays; where that is allowed."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    gc.disable()  # holds no cycles


def _key(ends: str) -> bytes:
    if ends == _EVERYBODY.decode():
        return _EVERYBODY
    return b"".join(map(socket.inet_aton, ends.split()))


def main() -> None:
    """See the module's docstring."""
    said = json.loads(sys.stdin.readline())
    pairs = {_key(ends): (delay, jitter, loss) for ends, (delay, jitter, loss) in said.items()}
    wire = Wire(pairs)
    only_delay = not any(jitter or loss for _, jitter, loss in pairs.values())
    device = open_device(sys.argv[1], together=only_delay)
    print("ready", flush=True)
    hurry()
    relay(wire, device, sys.stdin.fileno())
    print(json.dumps(wire.counts), flush=True)


if __name__ == "__main__":
    main()
