"""Draws the screenshots of the documentation from the recorded run.

Run with ``python -m tests.ui.screenshots``; they go to ``packaging/screenshots/``.
"""

import os
import sys
import time
from pathlib import Path

from client.ui.source.news import Link
from tests.ui.playing import Stage, play, recorded

TARGET = Path(__file__).parents[2] / "packaging" / "screenshots"
MAX_BYTES = 200_000
TWO_THIRDS = 2 * len(recorded()) // 3


def before_the_kill() -> int:
    """Return how many updates there are before a volunteer is killed: training as it should be."""
    states = [update.snapshot.state for update in recorded()]
    return states.index("waiting", states.index("training"))


SHOTS = {
    "dashboard": ("1", before_the_kill(), False, (140, 42)),
    "swarm-light": ("2", TWO_THIRDS, True, (120, 36)),
}


def draw(target: Path) -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    target.mkdir(parents=True, exist_ok=True)
    for name, (key, number, light, size) in SHOTS.items():
        drawn: list[str] = []

        async def scene(
            on: Stage, key: str = key, number: int = number, out: list[str] = drawn
        ) -> None:
            await on.feed(recorded()[:number], Link("live"))
            await on.press(key)
            out.append(on.app.export_screenshot(title="volunteer attach"))

        play(scene, size, light=light)
        if len(drawn[0].encode()) > MAX_BYTES:
            sys.exit(f"{name} has {len(drawn[0])} bytes, more than {MAX_BYTES}")
        (target / f"{name}.svg").write_text(drawn[0], encoding="utf-8")
        print(target / f"{name}.svg", len(drawn[0].encode()))


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
