"""Parameters that many commands have."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

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
