"""How often, and how soon, two volunteers behind routers become direct.

    python -m tests.bench.punch [--pairs 200] [--rtt-ms 80] [--a KIND] [--b KIND]

Each run has fresh members behind two routers of a kind and one public relay, in network namespaces;
it needs root. ``relayed`` is the time from the first dial to the link through the relay, ``direct``
that to the link that needs no relay.
"""

from __future__ import annotations

import argparse
import sys
from statistics import quantiles

from client.net import tcp
from tests.netlab.internet import Internet, Place, why_not
from tests.netlab.routers import Router
from tests.support.punching_pairs import meet
from tests.support.reaching_members import reaching_swarm

PATIENCE_S = 20.0


def main() -> int:
    """Run the pairs and print the shares and times."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.punch", description=__doc__)
    kinds = [kind.value for kind in Router]
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--rtt-ms", type=float, default=80.0, help="round trip between any two")
    parser.add_argument("--a", choices=kinds, default=Router.PORT_RESTRICTED.value)
    parser.add_argument("--b", choices=kinds, default=Router.PORT_RESTRICTED.value)
    options = parser.parse_args()
    if reason := why_not():
        print(f"no laboratory here: {reason}", file=sys.stderr)
        return 1
    relayed, direct = _runs(options.pairs, options.rtt_ms, Router(options.a), Router(options.b))
    print(f"{options.a} x {options.b}, {options.rtt_ms:.0f} ms, {options.pairs} pairs:")
    print(f"direct in {len(direct)} of {options.pairs}; {_times(direct)}")
    print(f"relayed in {len(relayed)} of {options.pairs}; {_times(relayed)}")
    return 0


def _runs(pairs: int, rtt_ms: float, a: Router, b: Router) -> tuple[list[float], list[float]]:
    relayed, direct = [], []
    with Internet({"relay": Place(), "a": Place(a), "b": Place(b)}, rtt_ms=rtt_ms) as net:
        for number in range(pairs):
            tcp.TCP._dialled.clear()  # a process of its own has dialled nobody yet
            with reaching_swarm(net) as swarm:
                pair = meet(swarm)
                relayed.append(pair.relayed_s)
                took_s = pair.until_direct_s(PATIENCE_S)
                if took_s is not None:
                    direct.append(took_s)
            print(f"{number + 1}: relayed {pair.relayed_s:.2f} s, direct {took_s}", flush=True)
            for place in ("a", "b"):
                net.restart_router(place)
    return relayed, direct


def _times(found: list[float]) -> str:
    if len(found) < 2:
        return "no times"
    steps = quantiles(found, n=20, method="inclusive")
    return f"p50 {steps[9]:.2f} s, p95 {steps[18]:.2f} s, most {max(found):.2f} s"


if __name__ == "__main__":
    sys.exit(main())
