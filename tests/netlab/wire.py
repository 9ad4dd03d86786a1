"""The long line between hosts: a device that all packets go through, each as much later.

    python wire.py DEVICE DELAY_S

A process of its own, without imports of the project; it makes the TUN device in the namespace it
runs in, says ``ready``, and ends, and the device with it, when its stdin does. It relays packets
where the relay of chaos runs (``client.lab.chaos.relay``)
relays streams: TCP must meet round-trip times at its own ends, or its windows would not be seen.
Rates are not its business.

Segments that the sender's kernel handed over together stay together, as they do between a kernel
and its network card: a fifth of the packets at 100 Mb/s, and the wire leaves the cores to those it
is there for.

Memory: at most ``MAX_HELD_BYTES``; further packets are lost.
"""

import contextlib
import fcntl
import gc
import os
import select
import struct
import sys
import time
from collections import deque

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


class Wire:
    """The packets on their way, each behind its header, by when they arrive."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._held = deque[tuple[float, bytes]]()
        self._bytes = 0

    def take(self, packet: bytes, now: float) -> None:
        """Hold a packet until it is due, or lose it."""
        if self._bytes + len(packet) <= MAX_HELD_BYTES:
            self._bytes += len(packet)
            self._held.append((now + self._delay_s, packet))

    def due(self, now: float) -> bytes | None:
        """Return a packet that arrives now."""
        if not self._held or self._held[0][0] > now:
            return None
        packet = self._held.popleft()[1]
        self._bytes -= len(packet)
        return packet

    @property
    def next_due(self) -> float | None:
        """When the next packet arrives."""
        return self._held[0][0] if self._held else None


def open_device(name: str) -> int:
    """Make the device; it lasts until the returned descriptor is closed."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH14x", name.encode(), flags))
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


def main() -> None:
    """See the module's docstring."""
    device = open_device(sys.argv[1])
    print("ready", flush=True)
    hurry()
    relay(Wire(float(sys.argv[2])), device, sys.stdin.fileno())


if __name__ == "__main__":
    main()
