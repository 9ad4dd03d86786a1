"""Invites: they name a swarm to join and the members to dial first.

Three forms, distinguished by ``parse_target``: the URI
``volunteer:<swarm-id>?peer=<multiaddr>[&peer=...][&ticket=...]``, the contents of a
``.swarm`` file (JSON with the signed manifest), and a member's bare multiaddr. Parsing only: no
disk, no network. The author of an invite is not trusted; every part is bounded and checked.
"""

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import quote, unquote

import msgspec
from msgspec import Meta, Struct

from protocol import limits
from protocol.address import Address, parse_peer_address
from protocol.errors import ProtocolError
from protocol.ids import SwarmId
from protocol.manifest import MAX_MANIFEST_BYTES, Manifest, swarm_id
from protocol.vouching.ticket import TICKET_BYTES
from protocol.wire.envelope import SIGNATURE_BYTES, verify_manifest

SCHEME = "volunteer:"
MAX_INVITE_CHARS = 8 * 1024
MAX_SWARM_FILE_CHARS = 2 * MAX_MANIFEST_BYTES + MAX_INVITE_CHARS
"""JSON inside a JSON string doubles its quotes, at worst."""
MAX_PEERS = 16

_MARK = "\ufeff \t\r\n"
"""A byte order mark and white space."""
_AROUND = _MARK + "<>()[]\"'`\u00ab\u00bb\u2018\u2019\u201c\u201d\u201e"
_SWARM_ID = re.compile(r"[0-9a-f]{64}")


class InviteError(ProtocolError):
    """An invite that cannot be used; the text says what is wrong, ``next_step`` what to do."""

    def __init__(self, problem: str, next_step: str = "ask for a new invite") -> None:
        super().__init__(problem)
        self.next_step = next_step


@dataclass(frozen=True, slots=True)
class Invite:
    """A swarm's id and members to call; the manifest comes from them and must have that id."""

    swarm: SwarmId
    peers: tuple[Address, ...]
    ticket: bytes | None = None
    """To be shown to the member that made the invite, which then vouches for us."""

    def __str__(self) -> str:
        """Return the URI."""
        query = [f"peer={quote(str(peer), safe='/')}" for peer in self.peers]
        if self.ticket is not None:
            query.append(f"ticket={_to_base64(self.ticket)}")
        return f"{SCHEME}{self.swarm}?{'&'.join(query)}"


@dataclass(frozen=True, slots=True)
class SwarmFile:
    """A verified manifest with its signature, and members to call (none: we are the first)."""

    manifest: Manifest
    encoded: bytes
    signature: bytes
    peers: tuple[Address, ...]
    ticket: bytes | None = None

    @property
    def swarm(self) -> SwarmId:
        """Id of the swarm."""
        return swarm_id(self.encoded)

    @property
    def invite(self) -> Invite:
        """The same as a URI, which leaves the manifest to be fetched from a member."""
        return Invite(self.swarm, self.peers, self.ticket)

    def __str__(self) -> str:
        """Return the contents of the ``.swarm`` file."""
        document = _Document(
            volunteer=1,
            manifest=self.encoded.decode(),
            signature=_to_base64(self.signature),
            peers=[str(peer) for peer in self.peers],
            ticket=None if self.ticket is None else _to_base64(self.ticket),
        )
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


Target = Invite | SwarmFile | Address


class _Document(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """JSON layout of a ``.swarm`` file."""

    volunteer: Literal[1]
    manifest: Annotated[str, Meta(max_length=MAX_MANIFEST_BYTES)]
    signature: Annotated[str, Meta(max_length=128)]
    peers: Annotated[
        list[Annotated[str, Meta(max_length=limits.MAX_ADDRESS_CHARS)]],
        Meta(max_length=MAX_PEERS),
    ]
    ticket: Annotated[str, Meta(max_length=64)] | None = None


_documents = msgspec.json.Decoder(_Document)


def parse_target(text: str) -> Target:
    """Parse what ``--swarm`` was given: a URI, the contents of a ``.swarm`` file or a multiaddr.

    Raises:
        InviteError: none of them, or a broken one.
        RemoteProtocolError: a ``.swarm`` file whose manifest or signature does not hold.
    """
    text, bare = text.strip(_MARK), unwrapped(text)
    if bare.startswith(SCHEME):
        return parse_invite(bare)
    if text.startswith("{"):
        return parse_swarm_file(text)
    if bare.startswith("/"):
        return _peer(bare)
    raise InviteError(
        f"not an invite: {text[:60]!r}",
        "give an invite (volunteer:...), a .swarm file, a member's address (/ip4/...) or '-'",
    )


def unwrapped(text: str) -> str:
    """Return an invite or an address without what mail programs and people put around it: quotes,
    brackets, the marks of a quoted mail, line breaks. Neither has any of these itself."""
    if len(text) > MAX_SWARM_FILE_CHARS:
        return ""
    lines = (line.lstrip("> \t") for line in text.splitlines())
    return "".join("".join(lines).split()).strip(_AROUND)


def parse_invite(text: str) -> Invite:
    """Parse an invite URI; raises ``InviteError``."""
    if len(text) > MAX_INVITE_CHARS:
        raise InviteError(f"an invite has at most {MAX_INVITE_CHARS} characters")
    name, _, query = text.removeprefix(SCHEME).partition("?")
    if not text.startswith(SCHEME) or not _SWARM_ID.fullmatch(name):
        raise InviteError("the invite does not begin with volunteer:<64 hex digits>")
    peers: list[Address] = []
    ticket: bytes | None = None
    for item in query.split("&") if query else ():
        key, _, value = item.partition("=")
        if key == "peer":
            peers.append(_peer(unquote(value, errors="replace")))
        elif key == "ticket" and ticket is None:
            ticket = _ticket(value)
        else:
            raise InviteError(f"the invite says {key[:20]!r}, which this version does not know")
    if not peers:
        raise InviteError("the invite names no member to call")
    return Invite(SwarmId(name), _distinct(peers), ticket)


def parse_swarm_file(text: str) -> SwarmFile:
    """Parse and verify the contents of a ``.swarm`` file.

    Raises:
        InviteError: not a ``.swarm`` file.
        RemoteProtocolError: the manifest or its signature does not hold.
    """
    if len(text) > MAX_SWARM_FILE_CHARS:
        raise InviteError(f"a .swarm file has at most {MAX_SWARM_FILE_CHARS} characters")
    try:
        document = _documents.decode(text)
        encoded = document.manifest.encode()
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InviteError(f"not a .swarm file: {error}") from error
    signature = _from_base64(document.signature, SIGNATURE_BYTES, "signature")
    manifest = verify_manifest(encoded, signature)
    ticket = None if document.ticket is None else _ticket(document.ticket)
    peers = _distinct([_peer(peer) for peer in document.peers])
    return SwarmFile(manifest, encoded, signature, peers, ticket)


def _peer(text: str) -> Address:
    try:
        return parse_peer_address(text)
    except ValueError as error:
        raise InviteError(
            str(error), "an address looks like /ip4/203.0.113.7/tcp/4001/p2p/12D3KooW..."
        ) from error


def _distinct(peers: list[Address]) -> tuple[Address, ...]:
    if len(peers) > MAX_PEERS:
        raise InviteError(f"an invite names at most {MAX_PEERS} members, this one {len(peers)}")
    return tuple(dict.fromkeys(peers))


def _ticket(text: str) -> bytes:
    return _from_base64(text, TICKET_BYTES, "ticket")


def _to_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _from_base64(text: str, size_bytes: int, what: str) -> bytes:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InviteError(f"the {what} is not base64") from error
    if len(data) != size_bytes or _to_base64(data) != text:
        raise InviteError(f"the {what} is damaged")
    return data
