"""A GPU's worker: its speed beside one PyTorch process, its codec, its memory, and a swarm on it.

    python -m tests.bench.gpu PART... [--device cuda] [--small] [--limit SECONDS] [--json FILE]
                               [--model gpt2|llama] [--compile on] [--reference whole|blocks|eager]
                               [--data FOLDER]

- ``rates``: what `probe` finds: products of matrices by type, copies on the device and to the host.
- ``repeats``: whether a recomputed microbatch has the bits of one whose graph was kept, whether two
  replicas make the same version, and what the codec's bytes are beside the processor's.
- ``codec``: s8 of a boundary on the device against copying the same numbers, and to the host.
- ``alone``: steps of a worker (microbatches, update) beside one PyTorch process that does the
  same in the same precision with a compiled model, in turns; MFU of both. ``--model``: gpt2
  (124M, all of it) or llama (a body stage of 1B parameters).
- ``exposed``: what encoding, copying and sealing boundaries adds to a middle stage's microbatches:
  done at once, and beside the next task; the share of it that is hidden.
- ``memory``: bytes a parameter of the stage, by the device's allocator, with and without
  `--offload`, and what a step takes with it by what it takes without.
- ``swarm``: two volunteers, a stage each, on the one device, beside one process. Then both pause,
  and the driver says how much memory they have given back.
- ``faults``: devices that do not exist, repeats, memory that is too small, a worker that dies.

Every part is a process of its own. ``--small`` and ``--device cpu`` try the command itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.gpu.alone import alone
from tests.bench.gpu.codec import codec
from tests.bench.gpu.exposed import exposed
from tests.bench.gpu.faults import faults
from tests.bench.gpu.memory import memory
from tests.bench.gpu.rates import rates
from tests.bench.gpu.repeats import repeats
from tests.bench.gpu.swarm import swarm
from tests.bench.gpu.work import Found, tell

PARTS: dict[str, Callable[[argparse.Namespace], Found]] = {
    "rates": rates,
    "repeats": repeats,
    "codec": codec,
    "alone": alone,
    "exposed": exposed,
    "memory": memory,
    "swarm": swarm,
    "faults": faults,
}


def main() -> int:
    """Run the parts, each in a process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", help="of: " + ", ".join(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", choices=("gpt2", "llama"), default="gpt2")
    parser.add_argument("--compile", choices=("auto", "on", "off"), default="on")
    parser.add_argument("--reference", choices=("whole", "blocks", "eager"), default="whole")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--data", help="of `swarm`: a folder of volunteer data build")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds of a part")
    parser.add_argument("--json", type=Path, help="to which results are appended")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        tell({"part": asked.parts[0], **PARTS[asked.parts[0]](asked)})
        return 0
    failed = 0
    for part in asked.parts:
        flags = [flag for flag in sys.argv[1:] if flag not in asked.parts]
        command = [sys.executable, "-m", "tests.bench.gpu", part, *flags, "--child"]
        began, lines = time.monotonic(), b""
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, timeout=asked.limit, check=False)
            lines, problem = done.stdout, f"status {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired as late:
            lines, problem = late.stdout or b"", f"not done within {asked.limit:.0f} s"
        taken = time.monotonic() - began
        text = lines.decode()
        if problem:
            failed += 1
            text += json.dumps({"part": part, "failed": problem}) + "\n"
        print(f"{text}# {part}: {taken:.0f} s", flush=True)
        if asked.json:
            with asked.json.open("a") as file:
                file.write(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
