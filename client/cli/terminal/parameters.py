"""Parameters that many commands have."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

AsJson = Annotated[bool, Parameter(help="Print JSON.")]
RunningSwarm = Annotated[
    str | None,
    Parameter(help="Name, id, invite or .swarm file of the swarm, where several volunteers run."),
]
