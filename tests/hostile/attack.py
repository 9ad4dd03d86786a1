"""An attack: the actions of one peer, and the bounds that the others must keep.

A file of ``tests/hostile/attacks`` defines ``ATTACK``, or ``ATTACKS`` that differ in little; they
are found by their names. There are two kinds of attacker. A *stranger* has
an identity and links and writes messages by hand (``stranger.py``). A *member* is a whole
volunteer, node and worker, whose messages to others are distorted on their way out
(``member.py``).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from client.errors import ExitCode, UserError
from protocol.evidence.statement import Decisive, statement_of
from protocol.ids import PeerId
from protocol.manifest import Manifest, encode_manifest, swarm_id
from protocol.wire.envelope import Signer
from protocol.wire.messages import Message
from protocol.wire.statement import encode_statement
from tests.hostile import attacks

if TYPE_CHECKING:
    from tests.hostile.stranger import Stranger

MIB = 2**20
WITHIN_S = 15.0
"""From the beginning of an attack until its bounds hold."""
FILES = 16
"""File descriptors that a node may have more than before, when the attacker has gone."""
Outgoing = tuple[Message, bytes] | tuple[Message, bytes, float]
"""A message and its payload, and after how many seconds it is sent."""


class Distorter:
    """Replaces a lying member's messages; the base of such attacks."""

    def __init__(self, me: PeerId, manifest: Manifest) -> None:
        self.me, self.manifest = me, manifest
        self.signer: Signer
        """Its key, with which a lie is signed as well."""

    def signed(self, message: Decisive) -> Decisive:
        """Return a message that decides a round with a signature that holds."""
        kind, statement = statement_of(message)
        signature = self._signature(kind, encode_statement(statement))
        return msgspec.structs.replace(message, signature=signature)

    def _signature(self, kind: str, body: bytes) -> bytes:
        return self.signer.sign(kind, body, swarm_id(encode_manifest(self.manifest))).signature

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Return what goes to ``peer`` instead of this message; nothing swallows it."""
        return [(message, payload)]


@dataclass(frozen=True)
class Bounds:
    """Bounds that the honest volunteers must keep."""

    rate: float = 0.8
    """Least share of the steps per second before, from ``WITHIN_S`` after the attack began on."""
    memory_bytes: int = 64 * MIB
    """Most that any honest node's memory may grow by, two minutes after the attack included."""
    steps_lost: int = 0
    """Most steps that may be done again: none, unless the harness restarts a volunteer."""
    shut_out_by: int = 0
    """Least number of honest volunteers that shut the attacker out."""
    attacker_cores: float = 0.0
    """Cores that the attacker needs for what it does: one that had fewer has not attacked."""


@dataclass(frozen=True)
class Attack:
    """One attack, and the swarm that it is tried on."""

    name: str
    issue: str
    """The item of the list of faults that it reproduces."""
    what: str
    """The attacker's actions, in one sentence."""
    stranger: Callable[[Stranger], Awaitable[None]] | None = None
    """Runs until it is cancelled or returns."""
    member: Callable[[PeerId, Manifest], Distorter] | None = None
    work: str = ""
    """The lie of a member's worker, of ``lying_worker.LIES``: it is signed like honest work."""
    honest: int = 0
    """Honest volunteers beside the attacker; 0: as many as make two replicas of every stage, the
    attacker counted if it is a member."""
    stages: int = 2
    stage: int = 1
    """Stage of a member."""
    aggregation: str = "sum"
    """Name of the swarm's aggregation rule."""
    microbatches: int = 8
    """Per step."""
    audit: int | None = None
    """Percent of all contributions that are audited."""
    lasts_s: float = 35.0
    """Duration of the attack."""
    rest_s: float = 5.0
    """Seconds for which the honest ones are watched afterwards; 120 for attacks on memory."""
    bounds: Bounds = field(default_factory=Bounds)
    restarts: bool = False
    """Whether one honest volunteer is killed and started again ``WITHIN_S`` after the attack began;
    its rate counts from when it serves again."""
    forgets: bool = False
    """Whether that volunteer's home is emptied first, so that it comes back as a newcomer."""
    returns_within_s: float = 0.0
    """How long it is waited for until it serves, which the attack may prevent; 0: the attack goes
    on once it serves."""
    apart: bool = False
    """Whether everybody has a host with a public address of its own (root): the attacker is one
    machine of the internet, and what counts by address applies. Else all are on loopback, where
    nothing is counted by address, as if the attacker had as many addresses as it liked."""

    def __post_init__(self) -> None:
        if (self.stranger is None) == (not self.within):
            raise ValueError(f"{self.name}: either a stranger or a member attacks")
        if not self.honest:
            object.__setattr__(self, "honest", 2 * self.stages - self.within)

    @property
    def within(self) -> bool:
        """Whether the attacker is a member."""
        return self.member is not None or bool(self.work)


def all_attacks() -> dict[str, Attack]:
    """Return every attack by its name."""
    names = [module.name for module in pkgutil.iter_modules(attacks.__path__)]
    modules = [importlib.import_module(f"{attacks.__name__}.{name}") for name in names]
    found = [getattr(module, "ATTACKS", None) or (module.ATTACK,) for module in modules]
    return {attack.name: attack for sizes in found for attack in sizes}


def attack_named(name: str) -> Attack:
    """Return an attack.

    Raises:
        UserError: there is none of that name.
    """
    known = all_attacks()
    if name not in known:
        raise UserError(f"no attack {name!r}", f"one of {', '.join(known)}", ExitCode.USAGE)
    return known[name]
