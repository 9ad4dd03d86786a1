"""Shows the recorded run to the application, as far as a test wants, without waiting."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, wraps
from inspect import Signature, signature
from itertools import chain
from pathlib import Path
from queue import Queue
from typing import Any

import msgspec
from textual.pilot import Pilot

from client.control.updates import Update
from client.ui.app import VolunteerApp
from client.ui.source.live import LiveSource
from client.ui.source.news import Answer, Link
from client.ui.themes import THEMES

RUN = Path(__file__).parent / "data" / "run.jsonl"
SMALL, LARGE = (80, 24), (200, 48)
Scene = Callable[..., Awaitable[None]]


@cache
def recorded() -> tuple[Update, ...]:
    lines = RUN.read_bytes().splitlines()
    return tuple(msgspec.json.decode(line, type=Update) for line in lines)


class StillSource(LiveSource):
    """A node that says only what a test makes it say, and notes what it is told."""

    def __init__(self) -> None:
        super().__init__(Path(), lambda pid: None)
        self.commands: list[tuple[str, dict[str, object]]] = []
        self.news = Queue()
        self.stopped = False

    def start(self) -> None:
        """Connect with nobody."""

    def stop(self) -> None:
        """Note the end."""
        self.stopped = True

    def command(self, method: str, **params: object) -> None:
        """Note a command and answer it."""
        self.commands.append((method, params))
        self.news.put(Answer(method, True, f"{method} done"))


class Stage:
    """An application that runs without a terminal."""

    def __init__(self, app: VolunteerApp, source: StillSource, pilot: Pilot[Any]) -> None:
        self.app, self.source, self.pilot = app, source, pilot

    async def feed(self, updates: Sequence[Update], link: Link | None = None) -> None:
        """Give the application these updates; it draws the last."""
        for update in updates[:-1]:
            self.app.record.apply(update)
        for update in updates[-1:]:
            self.source.news.put(update)
        self.source.news.put(link or Link("live"))
        self.app.look()
        await self.pilot.pause()

    async def take(self, one: Any) -> list[str]:
        """Take one step of a scene; return what the user was told beside the screen."""
        match one:
            case str():
                typed = [[*key[1:]] if key[0] == "'" else [key] for key in one.split()]
                await self.press(*chain.from_iterable(typed))
            case int(), int():
                await self.pilot.resize_terminal(*one)
            case str(selector), int(x), int(y):
                await self.pilot.click(selector, offset=(x, y))
            case Sequence():
                await self.feed(one)
            case _:
                self.source.news.put(one)
        await self.pilot.pause()
        self.app.look()
        await self.pilot.pause()
        told = [note.message for note in self.app._notifications]
        self.app.clear_notifications()
        await self.pilot.pause()
        return told

    async def press(self, *keys: str) -> None:
        """Press keys and let the application draw."""
        await self.pilot.press(*keys)
        self.app.look()
        await self.pilot.pause()

    def text(self) -> str:
        """Return what is on the screen, one line per row."""
        return screen_text(self.app)


def screen_text(app: VolunteerApp) -> str:
    """Return the characters on the screen after all filters."""
    height = app.size.height
    strips = app.screen._compositor.render_strips(app.size)
    filters, background = app.get_line_filters(), app.screen.background_colors[1]
    lines = []
    for strip in strips[:height]:
        segments = list(strip)
        for one in filters:
            segments = one.apply(segments, background)
        lines.append("".join(segment.text for segment in segments).rstrip())
    return "\n".join(lines) + "\n"


def screen_tones(app: VolunteerApp) -> str:
    """Return a letter for the colour of each character on the screen, a capital one where it is
    bold, and "+" for one of no tone; the chosen row has a mark in front."""
    theme = next(one for one in THEMES if one.name == app.theme)
    letters = {theme.variables[f"tone-{name}"]: name[0] for name in ("strong", "muted", "faint")}
    letters |= {theme.success: "g", theme.warning: "w", theme.error: "b", theme.primary: "k"}
    letters |= {theme.accent: "a", theme.secondary: "2", theme.foreground: "."}
    lines = []
    for strip in app.screen._compositor.render_strips(app.size):
        line, mark = "", " "
        for text, style, _ in strip:
            colour, behind = (c and c.get_truecolor().hex for c in (style.color, style.bgcolor))
            letter = letters.get(colour, "+")
            line += re.sub(r"\S", letter.upper() if style.bold else letter, text)
            mark = ">" if behind == theme.variables["row"] else mark
        lines.append(mark + line.rstrip())
    return "\n".join(lines) + "\n"


def play(scene: Scene, size: tuple[int, int] = SMALL, **options: Any) -> VolunteerApp:
    """Run a scene in an application of this size."""
    source = StillSource()
    app = VolunteerApp(source, **{"light": False, **options})
    app.draw_share = 1e9  # tests see every drawing
    app.NOTIFICATION_TIMEOUT = 1e6  # type: ignore[misc]

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await scene(Stage(app, source, pilot))

    asyncio.run(run())
    return app


def on_stage(*sizes: tuple[int, int]) -> Callable[[Scene], Callable[..., None]]:
    """Make a test of a scene, whose first argument is the stage, and play it in each size."""

    def test_of(scene: Scene) -> Callable[..., None]:
        @wraps(scene)
        def test(**given: Any) -> None:
            for size in sizes or (SMALL,):
                play(lambda on: scene(on, **given), size)

        _, *others = signature(scene).parameters.values()
        test.__signature__ = Signature(others)  # type: ignore[attr-defined]
        return test

    return test_of
