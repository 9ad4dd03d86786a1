"""Renew the figures of the page, all or some of them, and write it.

    python -m tests.bench [PART ...] [--page]

``make figures`` renews all parts. ``--page`` measures nothing.
"""

import argparse
import os
import sys
import time

from tests.bench.figures import PAGE, record, write_page
from tests.bench.renew import PARTS, Failed


def main() -> int:
    """Measure and write; 1 if a part has failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    if unknown := [name for name in asked.parts if name not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    failed = []
    for name in () if asked.page else asked.parts or PARTS:
        part = PARTS[name]
        if part.root and os.geteuid() != 0:
            _say(f"{name}: left out, it needs root")
            continue
        _say(f"{name}: about {part.minutes:g} minutes")
        begun = time.monotonic()
        try:
            rows = part.measure()
        except Failed as error:
            failed.append(name)
            _say(f"{name}: {error}")
            continue
        record(rows)
        for row in rows:
            _say(f"  {row.what}: {row.value} ({row.spread})")
        _say(f"{name}: {time.monotonic() - begun:.0f} s")
    write_page()
    _say(f"the page: {PAGE}")
    return int(bool(failed))


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
