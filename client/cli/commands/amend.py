"""Change the steps or the learning rate of the run that you founded.

Group: the swarm

$ volunteer amend --learning-rate 3e-4
  # from the first step that all members can reach with it
$ volunteer amend --learning-rate 1e-4 --schedule constant --from-step 5000  # later
$ volunteer amend --steps 20000  # in all; also of a run that is complete
$ volunteer amend --steps 20000 --schedule wsd  # more steps, with a fall in the last fifth

Only the founder's running volunteer can. It shows the rates before it asks; volunteer status says
from which step on members have agreed that it holds.

All members apply it from the same step on, which the stages agree on: the one that you name, or the
first that all can reach with it. What is not given stays, but a new rate or schedule ends with the
run, and the last rate keeps its share of the highest.
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from client.cli.founding.amending import change_run
from client.cli.founding.options import ScheduleName
from client.cli.terminal.answer import Answer, answered
from protocol.amendments.changes import Changes


@answered
def amend(
    *,
    learning_rate: Annotated[float | None, Parameter(name=("--learning-rate", "--lr"))] = None,
    min_lr: float | None = None,
    schedule: ScheduleName | None = None,
    warmup_steps: int | None = None,
    decay_from: int | None = None,
    decay_steps: int | None = None,
    from_step: int | None = None,
    steps: int | None = None,
    swarm: str | None = None,
    yes: bool = False,
) -> Answer:
    """Change how many steps a run has in all, or its learning rate from a step on.

    Parameters
    ----------
    learning_rate
        Highest learning rate.
    min_lr
        Last learning rate.
    schedule
        How it falls: as a cosine, not at all (constant), or linearly at the end of the run (wsd).
    warmup_steps
        Steps, from the beginning of the run, in which it rises.
    decay_from
        wsd: step at which it begins to fall; the last fifth of --decay-steps.
    decay_steps
        Step at which it is at its last; the end of the run.
    from_step
        Step from which this holds at the earliest; as soon as possible.
    steps
        Steps of the whole run, those that are done included; also of a run that is complete.
    swarm
        Name or beginning of the id of the swarm, where there are several.
    yes
        Do not ask.
    """
    changes = Changes(
        steps=steps,
        from_step=from_step,
        lr=learning_rate,
        min_lr=min_lr,
        warmup_steps=warmup_steps,
        decay_steps=decay_steps,
        schedule=schedule,
        decay_from=decay_from,
    )
    return change_run(swarm, changes, yes=yes)
