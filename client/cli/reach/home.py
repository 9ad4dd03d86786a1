"""This volunteer's folders, settings and identity, as commands need them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from client.config import Resolved, Settings, resolve
from client.errors import ExitCode, UserError
from client.store.identity import ensure_identity
from client.store.paths import SYSTEM_CONFIG_FILE, Folders, find_folders, make_private
from protocol.address import Address, parse_address
from protocol.ids import PeerId
from protocol.wire.envelope import Signer

_NOWHERE = ("192.0.2.1", 9)
"""An address of the documentation block: asking the routing table for it sends nothing."""


@dataclass(frozen=True)
class Home:
    """This volunteer's folders and settings."""

    folders: Folders
    resolved: Resolved

    @property
    def settings(self) -> Settings:
        """The merged settings."""
        return self.resolved.settings

    def signer(self) -> Signer:
        """Return this volunteer's identity; makes one at first use.

        Raises:
            UserError: it cannot be read, trusted or written.
        """
        return ensure_identity(make_private(self.folders.data))


def find_home(flags: Mapping[str, object] | None = None, config: Path | None = None) -> Home:
    """Resolve settings and folders from flags, environment and files.

    Raises:
        ConfigError: a setting is unknown or has a value that cannot be used.
    """
    user_file = find_folders().config_file
    return home_of(resolve(flags or {}, os.environ, config, user_file, SYSTEM_CONFIG_FILE))


def home_of(resolved: Resolved) -> Home:
    """Return the home of a volunteer that is set up like this."""
    data_dir = resolved.settings.data_dir
    return Home(find_folders(data=Path(data_dir).absolute() if data_dir else None), resolved)


def founder_addresses(settings: Settings, peer: PeerId) -> tuple[Address, ...]:
    """Return the founder's addresses for others: the announced ones, or this machine's.

    Without a configured port a free one is chosen; ``join`` then listens on the port that the
    swarm file promises for its own identity.
    """
    if settings.announce:
        return tuple(with_peer(text, peer) for text in settings.announce)
    host = settings.listen_host if settings.listen_host != "0.0.0.0" else own_host()
    return (Address("ip4", host, settings.listen_port or free_port(settings.listen_host), peer),)


def with_peer(text: str, peer: PeerId) -> Address:
    """Return the address with the peer's id behind it.

    Raises:
        UserError: not an address.
    """
    try:
        return replace(parse_address(text), peer=peer)
    except ValueError as error:
        raise UserError(f"announce: {error}", exit_code=ExitCode.USAGE) from error


def own_host() -> str:
    """Return the IPv4 address this machine would use to reach others; loopback if none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_NOWHERE)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def free_port(host: str) -> int:
    """Return a TCP port that is free now.

    Raises:
        UserError: no address of this machine.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except (OSError, UnicodeError) as error:
            words = f"cannot listen on {host}: {getattr(error, 'strerror', None) or error}"
            raise UserError(words, "correct the setting listen_host", ExitCode.CONFIG) from error
        return int(probe.getsockname()[1])
