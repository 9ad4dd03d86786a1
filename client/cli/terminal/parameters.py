"""Parameters that many commands have."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, Token

from client.quantities import parse_duration


class Time(float):
    """Seconds; help shows the name of the class as what is to be written."""


def _seconds(_: object, given: Sequence[Token]) -> float:
    return parse_duration(given[0].value)


Duration = Annotated[Time | None, Parameter(converter=_seconds)]
"""Written as 2h or 1h30m."""
AsJson = Annotated[bool, Parameter(help="Print JSON.")]
KnownSwarm = Annotated[
    str | None,
    Parameter(help="Name, id, invite or .swarm file (default: the only swarm known here)."),
]
Checkpoints = Annotated[
    tuple[Path, ...],
    Parameter(
        name="--checkpoint",
        help="Folder with checkpoints; may be repeated (default: this volunteer's own, else the "
        "swarm's).",
    ),
]
