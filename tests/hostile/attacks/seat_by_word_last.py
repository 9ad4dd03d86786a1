"""One identity whose heartbeats say that it serves the last stage, and that never does any work."""

from __future__ import annotations

from functools import partial

from tests.hostile.attack import Attack
from tests.hostile.attacks.seat_by_word import boast

ATTACK = Attack(
    name="seat-by-word-last",
    issue="B4",
    what="A stranger's heartbeats say that it serves the last stage, at a high rate.",
    stranger=partial(boast, stage=1),
)
