"""One identity whose heartbeats say that it serves a stage at a version that nobody has made."""

from __future__ import annotations

from functools import partial

from tests.hostile.attack import Attack
from tests.hostile.attacks.seat_by_word import boast

AHEAD = 1_000
"""Versions."""
ATTACK = Attack(
    name="version-by-word",
    issue="B4",
    what="A stranger's heartbeats say that it serves stage 0, a thousand versions ahead.",
    stranger=partial(boast, stage=0, ahead=AHEAD),
)
