"""``volunteer extend``: give a run more steps, as its founder."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter, validators

from client.cli.founding.amending import change_run
from client.cli.terminal.parameters import AsJson
from protocol.amendments.changes import Changes


def extend(
    *,
    steps: Annotated[int, Parameter(validator=validators.Number(gte=1))],
    swarm: str | None = None,
    yes: bool = False,
    json: AsJson = False,
) -> None:
    """Change how many steps a run has in all: also of one that is complete.

    Only the founder can. Members learn of it by its signature, and the training goes on where it
    is. The learning rate stays as it was to be; volunteer amend changes it, too.

    Parameters
    ----------
    steps
        Steps of the whole run, those that are done included.
    swarm
        Name or beginning of the id of the swarm, where there are several.
    yes
        Do not ask.
    """
    change_run(swarm, Changes(steps=steps), yes=yes, json=json)
