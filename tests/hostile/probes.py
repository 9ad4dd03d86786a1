"""Attack the probes of reachability.

    python -m tests.hostile.probes [flood,forge] [--seconds 30]

Members at places of a laboratory's internet (``tests.netlab``, takes root), each in a thread of its
host's namespace, with the client's network and driver of reachability. flood: a member asks another
one without end to dial it back, at ports of its address where somebody else may listen; a banned
identity is replaced. What leaves the other one from fresh ports is counted against what comes.
forge: eight members at one place tell another one that they see it at ever new hosts and ports,
while three honest ones answer its probes. What is printed goes into
``tests/bench/results/hostile_probes.md``.
"""

import argparse
import os
import random
import sys
import time
from contextlib import suppress
from typing import Final

import trio

from client.lab.local_swarm import terminate_as_interrupt
from client.net.errors import NetworkError
from client.net.libp2p_network import MAX_GREETINGS, Libp2pNetwork, open_network
from client.train.messaging.handshake import CLIENT, PROTOCOL
from protocol.ids import PeerId
from protocol.wire.messages import Hello
from tests.netlab import ground
from tests.netlab.inside import inside
from tests.netlab.internet import Internet, Place
from tests.netlab.routers import Router
from tests.support.arrivals import say
from tests.support.reaching_members import ReachingMember, reaching_swarm

LIARS: Final = 8
COUNTERS: Final = """
table inet probes {{
  counter dialled {{ }}
  counter asked {{ }}
  chain out {{
    type filter hook output priority filter; policy accept;
    tcp sport != {own} ip daddr {whom} counter name dialled
  }}
  chain in {{
    type filter hook input priority filter; policy accept;
    tcp dport {own} ip saddr {whom} counter name asked
  }}
}}
"""


async def _ask_without_end(address: str, seconds: float) -> dict[str, int]:
    """Ask a member to dial us back; return what it answered, by kind."""
    said = dict.fromkeys(("identities", "asked", "dialled", "refused"), 0)

    async def ask(network: Libp2pNetwork, peer: PeerId) -> None:
        answer = await network.probe(peer, random.randrange(1, 65536))
        said["refused" if answer is None else "dialled"] += 1

    with trio.move_on_after(seconds):
        while True:
            async with (
                open_network(os.urandom(32), ("127.0.0.1", 0)) as network,
                trio.open_nursery() as nursery,
            ):
                with suppress(NetworkError):
                    peer = await network.connect(address)
                    said["identities"] += 1
                    while network.ends(peer) is not None:
                        nursery.start_soon(ask, network, peer)
                        said["asked"] += 1
                        await trio.sleep(0.005)
                nursery.cancel_scope.cancel()
            await trio.sleep(0.2)
    return said


def flood(seconds: float) -> list[str]:
    """Return what became of a flood of requests, in lines."""
    places = {"prober": Place(), "asker": Place()}
    with Internet(places) as net, reaching_swarm(net) as swarm:
        prober = swarm.start("prober")
        (address,) = [one for one in prober.addresses if net.address("prober") in one]
        own = prober.network.listening[0].port
        rules = COUNTERS.format(own=own, whom=net.address("asker"))
        ground.run(net.command("prober", ["nft", "-f", "-"]), rules)
        said = inside(net, "asker", lambda: trio.run(_ask_without_end, address, seconds))
        dialled, asked = net.counted("prober", "dialled"), net.counted("prober", "asked")
        blamed = prober.network.statistics().refused.get("reach-flood", 0)
    words = ", ".join(f"{name} {count}" for name, count in said.items())
    held = "held" if dialled <= asked and said["dialled"] <= 8 + seconds else "missed"
    return [
        f"flood of requests for {seconds:.0f} s: {words}; the prober sent {dialled:,} bytes from "
        f"fresh ports and got {asked:,}; it blamed {blamed} times: {held}"
    ]


async def _forge(addresses: list[str], victim: PeerId, seconds: float) -> int:
    """Tell a member again and again that we see it elsewhere; return how often."""
    told = 0
    with trio.move_on_after(seconds):
        while True:
            async with open_network(os.urandom(32), ("127.0.0.1", 0)) as network:
                with suppress(NetworkError):
                    await network.connect(*addresses)
                    for _ in range(MAX_GREETINGS):
                        host = f"11.{random.randrange(100, 200)}.{random.randrange(256)}.2"
                        seen = host, random.randrange(1, 65536)
                        await say(network, victim, Hello(PROTOCOL, None, CLIENT, seen=seen))
                        told += 1
                        await trio.sleep(0.9)
            await trio.sleep(0.5)
    return told


def forge(seconds: float) -> list[str]:
    """Return what became of forged observations, in lines."""
    probers = ("one", "two", "three")
    places = {"victim": Place(), "liar": Place(Router.FULL_CONE)}
    with Internet(places | {n: Place() for n in probers}) as net, reaching_swarm(net) as swarm:
        public = [swarm.start(name) for name in probers]
        called = [a for m in public for a in m.addresses if "/ip4/" in a]
        victim = swarm.start("victim", *called)
        victim.wait(lambda now: now.state == "reachable")
        mine = net.address("victim")

        async def all_liars() -> int:
            told = [0]
            async with trio.open_nursery() as nursery:

                async def one() -> None:
                    each = await _forge(list(victim.addresses), victim.network.peer_id, seconds)
                    told[0] += each

                for _ in range(LIARS):
                    nursery.start_soon(one)
            return told[0]

        began = time.monotonic()
        told = inside(net, "liar", lambda: trio.run(all_liars))
        took = time.monotonic() - began
        standings, advertised = _standing(victim)
        asked = len(victim.answers)
    false = [text for text in advertised if mine not in text and "127.0.0.1" not in text]
    held = "held" if not false and (mine, "public") in standings else "missed"
    return [
        f"{told} forged observations of {LIARS} members at one place in {took:.0f} s: candidates "
        f"{standings}; {len(false)} false addresses advertised; {asked} probes answered: {held}"
    ]


def _standing(member: ReachingMember) -> tuple[list[tuple[str, str]], list[str]]:
    found = [(s.place[0], s.verdict.value) for s in member.reach.machine.candidates()]
    return found, member.reach.advertised(member.addresses)


def main() -> int:
    """Try the attacks and print what became of them; 1 if a bound does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="?", default="flood,forge")
    parser.add_argument("--seconds", type=float, default=30.0)
    asked = parser.parse_args()
    lines: list[str] = []
    for part in asked.parts.split(","):
        lines += {"flood": flood, "forge": forge}[part](asked.seconds)
        print(lines[-1], flush=True)
    return int(any(line.endswith("missed") for line in lines))


if __name__ == "__main__":
    with terminate_as_interrupt():
        sys.exit(main())
