"""Copies the swarm's model out of the swarm: the newest version that every stage has on disk.

An observer with a throw-away identity: it links to the members, holds no seat and delays nobody.
The members' signed records name the complete versions and the members that have them
(``witnesses``). Those are asked, and each stage is downloaded striped over those that have it.
The records' hashes prove every chunk as it arrives.
"""

from collections.abc import Callable
from pathlib import Path

import nacl.utils
import trio

from client.errors import ExitCode, UserError
from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.network import NetEvent
from client.train.engine import Engine
from client.train.messaging.admission import Vouching
from client.train.messaging.bootstrap import find_swarm
from client.train.recovery.witnesses import Candidate, candidates
from client.train.reporting.event_sink import EventSink
from client.train.transfer.blobs import ANSWER_S, DiskFailed, DownloadFailed
from protocol.ids import PeerId
from protocol.invite import SwarmFile, Target
from protocol.manifest import FIRST_SAVED
from protocol.recovery.stored import STORED
from protocol.transfer.blob import Blob
from protocol.vouching.register import KeptRegister, Register
from protocol.wire.envelope import Signer

FIND_S = 20.0
LOOK_S = 0.5
TOKENIZER_S = 20.0
"""Seconds without an answer after which nobody has the tokenizer."""
TOKENIZER_FILE = "tokenizer.json"
ATTEMPTS = 5
"""At least, where something was to be had."""
Progress = Callable[[str], None]
Lend = Callable[[SwarmFile, PeerId], KeptRegister]
"""Vouches for a key of our own that only observes."""


async def gather(
    target: Target, out_dir: Path, *, dial_timeout_s: float, say: Progress, lend: Lend
) -> tuple[SwarmFile, list[Path]]:
    """Download the newest complete checkpoint of a swarm; return the swarm, and one checkpoint file
    per stage in pipeline order.

    Args:
        out_dir: folder for the files; the swarm's tokenizer comes to ``tokenizer.json`` there, if
            it has one and a member has it.
        dial_timeout_s: limit for reaching a member.
        say: gets progress in words.

    Raises:
        UserError: nobody answers, or no version is offered by every stage.
    """
    seed = nacl.utils.random(32)
    async with open_network(seed, ("0.0.0.0", 0)) as network:
        seen: list[NetEvent] = []
        swarm = await find_swarm(network, target, None, network.peer_id, seen, dial_timeout_s)
        async with trio.open_nursery() as nursery:
            engine = _engine(network, Signer(seed), swarm, nursery, lend)
            nursery.start_soon(engine.run, seen)
            paths = await _copy_newest(engine, out_dir, say)
            await _copy_tokenizer(engine, out_dir, say)
            nursery.cancel_scope.cancel()
    return swarm, paths


async def read_swarm(target: Target, *, dial_timeout_s: float) -> SwarmFile:
    """Return a swarm's description, with the members that ``target`` names; it reveals nothing of
    ours. Raises UserError: nobody answers, or the swarm is not the one that was asked for."""
    async with open_network(nacl.utils.random(32), ("0.0.0.0", 0)) as network:
        return await find_swarm(network, target, None, network.peer_id, [], dial_timeout_s)


def _engine(
    network: Libp2pNetwork,
    signer: Signer,
    swarm: SwarmFile,
    nursery: trio.Nursery,
    lend: Lend,
) -> Engine:
    engine = Engine(network, signer, swarm, EventSink(_drop), nursery)
    if swarm.manifest.policy.private:
        kept = lend(swarm, signer.peer)
        register = Register(signer, swarm.manifest.founder, swarm.swarm, kept)
        engine.handshake.vouching = Vouching(
            register, None, engine, _drop, engine.greet_all, engine.expel, _drop
        )
    return engine


async def _copy_newest(engine: Engine, out_dir: Path, say: Progress) -> list[Path]:
    """Copy the best version that members give: one that is deleted meanwhile gives way to
    another."""
    found, problem, failures = list[Candidate](), "", 0
    deadline = engine.now() + FIND_S
    while engine.now() < deadline or (found and failures < ATTEMPTS):
        await trio.sleep(LOOK_S)
        found = _candidates(engine)
        failures += bool(found)
        for candidate in found:
            try:
                stages = range(engine.manifest.stage_count)
                return [await _copy(engine, stage, candidate, out_dir, say) for stage in stages]
            except DiskFailed as error:
                next_step = "free space: volunteer cache, volunteer cache --prune"
                raise UserError(str(error), next_step) from error
            except DownloadFailed as error:
                if problem != (problem := f"version {candidate.version}: {error}"):
                    say(problem)
    if found:
        raise UserError(problem, "try again", ExitCode.TEMPORARY)
    if empty := engine.held_stages.view.empty_stages():
        words = f"nobody serves stage {', '.join(map(str, empty))} now"
        next_step = "try again once every stage has a volunteer"
        raise UserError(words, next_step, ExitCode.TEMPORARY)
    every = engine.manifest.policy.checkpoint_every
    first = min(every, FIRST_SAVED)
    raise UserError(
        "no version is on the disks of every stage yet",
        f"try again later: every volunteer saves its stage after {first} steps, and each {every}",
        ExitCode.TEMPORARY,
    )


def _candidates(engine: Engine) -> list[Candidate]:
    stored = {h.signer: h.said for h in engine.membership.records if h.envelope.kind == STORED}
    return candidates(stored, engine.held_stages.view)


async def _copy(
    engine: Engine, stage: int, chosen: Candidate, out_dir: Path, say: Progress
) -> Path:
    path = out_dir / f"stage-{stage}-v{chosen.version}.safetensors"
    say(f"downloading stage {stage} at version {chosen.version}")
    state = engine.downloads.state(stage, chosen.version, chosen.hashes[stage])
    await engine.downloads.fetch(state, chosen.donors[stage], path, begins_s=ANSWER_S)
    return path


async def _copy_tokenizer(engine: Engine, out_dir: Path, say: Progress) -> None:
    """Copy the swarm's tokenizer from members that have it."""
    if (brought := engine.manifest.data.tokenizer) is None:
        return
    path = out_dir / TOKENIZER_FILE
    blob = Blob(bytes.fromhex(brought.digest), brought.size_bytes)
    donors = sorted(engine.handshake.admitted)
    try:
        await engine.downloads.fetch(blob, donors, path, begins_s=TOKENIZER_S)
    except DownloadFailed:
        say("no member that could be reached has the swarm's tokenizer")


def _drop(_: object) -> None:
    """An observer keeps nothing, and reports its downloads alone and what it is refused for."""
