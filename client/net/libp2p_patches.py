"""py-libp2p 0.8.1, made safe for connections to strangers: all patches of the library.

The client uses the library's Noise XX handshake, keys and peer ids. It does not use its
``BasicHost``, ``Swarm``, ``Multiselect`` and ``Yamux``: `host.py`, `handshake.py`, `secure.py` and
`yamux.py` speak the same wire protocols in a tenth of the code. Its faults and their mends are
listed in `protocol/RATIONALE.md`. This module holds no state.
"""

import logging
import sys
import warnings
from importlib.util import find_spec, module_from_spec
from typing import Final

import trio

from client.net.transport import ByteStream

NOT_RUN: Final = ("libp2p", "libp2p.transport")
"""Packages whose ``__init__`` is left out."""
MAX_HANDSHAKE_BYTES: Final = 128 * 1024
"""Bytes that a stranger may send before it has proved its identity; the library has no bound."""


def _import_quietly() -> None:
    """Import the parts that the client uses, without letting the library print or log anything.

    The ``__init__`` of the library and of its transports import everything it has: QUIC, HTTP, DNS,
    mDNS and Prometheus, twice the time and 35 MB. That of the library configures logging, too, as
    ``LIBP2P_DEBUG`` says. So their parts are imported without them. The loggers of the parts have
    no handler; Python would print their warnings to stderr, over any TUI.
    """
    for name in NOT_RUN:
        spec = find_spec(name)
        if spec is None:
            raise ImportError(f"{name} is missing: libp2p is damaged", name=name)
        sys.modules.setdefault(name, module_from_spec(spec))
    with warnings.catch_warnings():
        # Deprecation warnings inside the library and its imports do not concern this code.
        warnings.simplefilter("ignore")
        import libp2p.security.noise.patterns  # noqa: F401
    for name in ("libp2p", "multiaddr"):
        logging.getLogger(name).addHandler(logging.NullHandler())


_import_quietly()

from libp2p.io.abc import ReadWriteCloser  # noqa: E402
from libp2p.io.exceptions import IOException  # noqa: E402

SECURITY: Final = "/noise"
"""The only security protocol that is offered or accepted; the library offers plaintext, too."""
MUXER: Final = "/yamux/1.0.0"


class GuardedStream(ReadWriteCloser):  # type: ignore[misc]  # untyped library
    """A byte stream with the library's interface and a budget of bytes to read.

    Args:
        stream: nobody else reads or writes it meanwhile.
        budget_bytes: how much may be read through this object.
    """

    def __init__(self, stream: ByteStream, budget_bytes: int = MAX_HANDSHAKE_BYTES) -> None:
        self._stream, self._budget_bytes = stream, budget_bytes

    async def read(self, n: int | None = None) -> bytes:
        """Read up to ``n`` bytes; raises IOException at the end or past the budget."""
        if n == 0:
            return b""
        if n is None or n > self._budget_bytes:
            raise IOException("more bytes than a handshake needs")
        try:
            data = bytes(await self._stream.receive_some(n))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise IOException(str(error)) from error
        if not data:
            raise IOException("the stream ended during the handshake")
        self._budget_bytes -= len(data)
        return data

    async def write(self, data: bytes) -> None:
        """Write everything; raises IOException when the stream is broken."""
        try:
            await self._stream.send_all([data])
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise IOException(str(error)) from error

    async def close(self) -> None:
        """Do nothing: the opener of the stream closes it."""

    def get_remote_address(self) -> tuple[str, int] | None:
        """Return None: the library asks only for its logs."""
        return None
