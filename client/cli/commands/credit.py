"""``volunteer credit``: this volunteer's work for its swarms."""

from __future__ import annotations

from msgspec import Struct

from client.cli.reach.home import Home, find_home
from client.cli.terminal.output import human_bytes, print_json, printable
from client.cli.terminal.parameters import AsJson
from client.cli.terminal.table import aligned
from client.cli.terminal.when import clock
from client.control.client import ControlClient, ControlError, running_nodes
from client.store.persisted import Persisted
from client.store.records import KeptCredit
from client.store.swarms import SwarmStore


class Contribution(Struct, frozen=True, kw_only=True):
    """The work for one swarm, over all sessions."""

    swarm: str
    swarm_name: str
    microbatches: int
    """Our microbatches in committed steps, summed over stages."""
    tokens: int
    sent_bytes: int
    since: float
    """Unix seconds."""
    running: bool


class Credits(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer credit --json``."""

    swarms: list[Contribution]
    schema_version: int = 1


def credit(*, swarm: str | None = None, json: AsJson = False) -> None:
    """Show what this volunteer has done: microbatches, tokens and bytes, over all its sessions.

    It is counted here for its owner; nobody in the swarm relies on it. A volunteer that is not
    running is shown as it was when it was last.

    Parameters
    ----------
    swarm
        Name or beginning of the id of the swarm (default: all).
    """
    found = [
        one
        for one in contributions(find_home())
        if swarm is None or one.swarm_name == swarm or one.swarm.startswith(swarm)
    ]
    if json:
        print_json(Credits(swarms=found))
        return
    rows = [
        [
            one.swarm_name,
            f"{one.microbatches:,}",
            f"{one.tokens:,}",
            human_bytes(one.sent_bytes),
            clock(one.since) if one.since else "-",
        ]
        for one in found
    ]
    for line in aligned(["swarm", "microbatches", "tokens", "sent", "since"], rows):
        print(printable(line))


def contributions(home: Home) -> list[Contribution]:
    """Return the work for every swarm that this home remembers, that of running ones up to now."""
    live = {}
    for path, greeting in running_nodes(home.folders.runtime):
        try:
            with ControlClient(path) as node:
                live[greeting.swarm] = node.status().credit
        except ControlError:
            continue  # it ended meanwhile: the file has its work
    found = []
    for known in SwarmStore(home.folders.swarms).all():
        kept = Persisted(home.folders.credit(known.swarm), KeptCredit)
        now = live.get(known.swarm) or kept.peek()
        if now is None:
            continue
        found.append(
            Contribution(
                swarm=known.swarm,
                swarm_name=known.manifest.name,
                microbatches=now.microbatches,
                tokens=now.tokens,
                sent_bytes=now.sent_bytes,
                since=now.since,
                running=known.swarm in live,
            )
        )
    return found
