"""A GPU's worker: its speed beside one PyTorch process, its memory, and a swarm on it.

    python -m tests.bench.gpu quick [--deadline 600] [--device cuda] [--json FILE] [--cache FOLDER]
    python -m tests.bench.gpu PART... [the same flags]
    python -m tests.bench.gpu wheels FOLDER

``quick`` is all parts in the order below, for a card that is there for a quarter of an hour. Every
part is a process of its own, and its rows are kept as they come. ``wheels`` downloads what a
machine with torch and numpy lacks. ``--device cpu --small`` tries the command itself.

- ``rates``: what is missing, and what `probe` finds: products of matrices by type, copies on the
  device.
- ``alone-gpt2``, ``alone-llama``: steps of a worker (microbatches, update) beside one PyTorch
  process that does the same in the same precision, in turns, as they are and compiled; MFU of both;
  where the worker's time goes. gpt2: 124M, all of it; llama: a body stage of 1B parameters.
- ``exposed``: what encoding, copying and sealing boundaries adds to a middle stage's microbatches:
  done at once, and beside the next task; the share of it that is hidden.
- ``swarm``: two volunteers, a stage each, on the one device.
- ``memory``: bytes a parameter of the stage, by the device's allocator, with and without
  `--offload`, and seconds of a round.
- ``tests``: the unit tests of the compute worker, on the device.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

from client.lab.local_swarm import terminate_as_interrupt
from tests.bench.gpu.running import OUT, SHARES_S, run_all, tell


def main() -> int:
    """Run the parts, or the one that this process is for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", help="quick; some of: " + ", ".join(SHARES_S))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--deadline", type=float, default=600.0, help="seconds of all parts")
    parser.add_argument("--json", type=Path, default=OUT / "rows.jsonl", help="rows go there")
    parser.add_argument("--cache", type=Path, help="of what is compiled; default: beside the rows")
    parser.add_argument("--peak", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.parts[0] == "wheels" and len(asked.parts) == 2:
        from tests.bench.gpu.wheels import download

        return download(Path(asked.parts[1]))
    asked.json = asked.json.absolute()
    asked.cache = (asked.cache or asked.json.parent / "compiled").absolute()
    asked.parts = list(SHARES_S) if asked.parts == ["quick"] else asked.parts
    if unknown := [part for part in asked.parts if part not in SHARES_S]:
        parser.error(f"no such part: {', '.join(unknown)}")
    if not asked.child:
        try:
            with terminate_as_interrupt():
                return run_all(asked)
        except KeyboardInterrupt:
            return 130
    name, _, asked.model = asked.parts[0].partition("-")
    tell(asked, getattr(import_module(f"tests.bench.gpu.{name}"), name)(asked))
    return 0


if __name__ == "__main__":
    sys.exit(main())
