"""This volunteer's folders, settings and identity, as commands need them."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from client.cli.terminal.output import say
from client.config import EVERYWHERE, Resolved, Settings, resolve
from client.errors import ConfigError, ExitCode, UserError
from client.store.identity import ensure_identity, load_identity
from client.store.paths import SYSTEM_CONFIG_FILE, Entry, Folders, find_folders, make_private
from protocol.address import Address, parse_address
from protocol.hosts import is_global, kind_of
from protocol.ids import PeerId
from protocol.invite import Target
from protocol.wire.envelope import Signer

_NOWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses of the documentation blocks: asking the routing table for them sends nothing."""


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
        """Return this volunteer's identity; makes one at first use, and says so if there was one.

        Raises:
            UserError: it cannot be read, trusted or written.
        """
        data = make_private(self.folders.data)
        if load_identity(data) is None and self.folders.swarms.exists():
            say(f"note: {data / Entry.KEY} is gone: this is a new volunteer from now on.")
            say("  To be the same one to the swarms that know it, restore that file from a backup")
        return ensure_identity(data)

    def known_peer(self) -> PeerId | None:
        """Return this volunteer's peer id; None: it has no key yet, or one that cannot be read."""
        with suppress(UserError):
            seed = load_identity(self.folders.data)
            return None if seed is None else Signer(seed).peer
        return None


def find_home(flags: Mapping[str, object] | None = None) -> Home:
    """Resolve settings and folders from flags, environment and files.

    Raises:
        ConfigError: a setting has a value that cannot be used.
    """
    return _told(home_of(_resolved(flags or {})))


def running_home() -> Home:
    """Return the home for a command to what runs already: a fault in the settings is told, because
    it does not concern it."""
    home, faults = home_with_faults()
    for fault in faults:
        say(f"volunteer: {fault}; it counts as not set: {fault.next_step}")
    return _told(home)


def home_with_faults() -> tuple[Home, list[ConfigError]]:
    """Return the home, and the faults of the settings that count as not set for them."""
    faults: list[ConfigError] = []
    return home_of(_resolved({}, faults)), faults


def _resolved(flags: Mapping[str, object], faults: list[ConfigError] | None = None) -> Resolved:
    user_file = find_folders().config_file
    return resolve(flags, os.environ, user_file, SYSTEM_CONFIG_FILE, faults)


def _told(home: Home) -> Home:
    """Tell which names are no settings, and return the home."""
    for words in home.resolved.unknown:
        say(f"note: {words}")
    return home


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
        return tuple(replace(parse_address(text), peer=peer) for text in settings.announce)
    port = settings.listen_port or free_port(settings.listen_host)
    hosts = own_hosts(settings.listen_host)
    return tuple(Address(kind_of(host), host, port, peer) for host in hosts)


def promised_port(settings: Settings, own: PeerId, target: Target) -> Settings:
    """Return the settings with the port at which the members that a target names list ``own``,
    unless the user chose one.

    The founder's file names the founder's own address; others will look for it there.
    """
    named = (target,) if isinstance(target, Address) else target.peers
    ports = [address.port for address in named if address.peer == own]
    if not ports or settings.listen_port:
        return settings
    return structs.replace(settings, listen_port=ports[0])


def own_hosts(listen_host: str) -> list[str]:
    """Return the addresses at which others reach what listens on a host of this machine, those
    that reach farthest first; of all addresses of a kind the one this machine would use itself."""
    families = {"0.0.0.0": [socket.AF_INET], "::": [socket.AF_INET6]}
    families[EVERYWHERE] = [socket.AF_INET, socket.AF_INET6]
    if listen_host not in families:
        return [listen_host]
    found = [host for family in families[listen_host] if (host := _own_host(family))]
    nowhere = "::1" if listen_host == "::" else "127.0.0.1"
    return sorted(found, key=lambda host: not is_global(host)) or [nowhere]


def _own_host(family: socket.AddressFamily) -> str | None:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_NOWHERE[family], 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def free_port(host: str) -> int:
    """Return a TCP port that is free now.

    Raises:
        UserError: no address of this machine.
    """
    host = "0.0.0.0" if host == EVERYWHERE else host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
            return int(probe.getsockname()[1])
    except (OSError, UnicodeError) as error:
        words = f"cannot listen on {host}: {getattr(error, 'strerror', None) or error}"
        raise UserError(words, "correct the setting listen_host", ExitCode.CONFIG) from error
