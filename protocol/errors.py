"""Errors of the protocol: ours, theirs, and what theirs cost them."""


class ProtocolError(Exception):
    """Anything that breaks the rules of the protocol."""


class LocalProtocolError(ProtocolError):
    """We tried something the protocol does not allow: a bug in this program."""


class RemoteProtocolError(ProtocolError):
    """A peer sent something the protocol does not allow.

    Attributes:
        reason: a short word for counters and logs (``"bad-signature"``), stable over versions.
        penalty: points added to the peer's score; 100 points ban it for a while.
    """

    def __init__(self, reason: str, detail: str = "", penalty: int = 10) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.penalty = penalty
