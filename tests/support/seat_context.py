"""The surroundings of a seat's driver: what is not of interest writes down what it is asked for."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from client.config import Settings
from client.train.machine.time_spent import TimeSpent
from client.train.workers.task_scheduler import TaskScheduler
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.view import SwarmView


def seat_context(me: PeerId, manifest: Manifest, ports: Any) -> Any:
    """A ``StageContext`` whose owner is ``ports``."""
    context = Mock(owner=ports, scheduler=TaskScheduler(), time_spent=TimeSpent())
    context.view = SwarmView(((),) * manifest.stage_count)
    terms = context.terms
    terms.me, terms.manifest, terms.settings, terms.ports = me, manifest, Settings(), ports
    terms.history.is_kept.return_value = False
    terms.amendments.return_value.steps = manifest.steps
    return context
