"""Network errors, in words that a user or a driver can act on."""

import trio


class NetworkError(Exception):
    """Base of everything the network raises on purpose."""


class ListenError(NetworkError):
    """The host cannot listen on an address it was given."""


class PortInUse(ListenError):
    """Another process listens on this port already."""

    def __init__(self, port: int) -> None:
        super().__init__(
            f"port {port} is in use by another program: "
            "stop it, choose another port, or choose port 0 to let the system pick a free one"
        )


class AddressError(NetworkError):
    """A text is not an address this client can dial."""


class DialError(NetworkError):
    """A peer could not be reached; the message says what was tried and what happened."""


class NotCalled(DialError):
    """None of a peer's addresses may be dialled now."""


class TurnedAway(DialError):
    """Somebody is there and has closed the connection before it was a link: too many come now."""


class ConnectionLost(NetworkError, trio.BrokenResourceError):
    """The connection under a stream ended."""


class StreamReset(NetworkError, trio.BrokenResourceError):
    """The peer (or this side) ended one stream at once."""


class HandshakeFailed(NetworkError):
    """The other side did not prove its identity, or uses another protocol."""


class NotAnswered(HandshakeFailed):
    """The other side closed the connection before it had said anything."""
