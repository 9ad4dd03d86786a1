"""Predict the throughput of given machines, and the best way to cut the model.

Group: try and measure

$ volunteer plan --machines 4 --up 20Mbit/s --rtt-ms 60  # four like this one, on home lines
$ volunteer plan --preset small --machines 16 --gflops 400 --up 50Mbit/s  # sixteen others
$ volunteer plan --stages 1 --memory 22GB --host-memory 48GB --gflops 60000  # GPUs and their hosts
$ volunteer plan --swarm x.swarm --table machines.toml  # for a founded swarm
$ volunteer plan --machines 8 --tokens 1000000000  # how long so many tokens take
$ volunteer plan --json | jq .best  # for programs

A table lists groups of equal machines, each under [[machine]], with any of count, gflops, memory,
host_memory, up, down and rtt_ms: count = 3, gflops = 400.0, memory = "16GB", up = "20Mbit/s".
Values that are left out are measured on this machine. One with several devices has the speed of all
and the memory of one, for each holds the stage.

Averaging in every step and in local rounds stand side by side. "loss" is how much higher that on
held-out text is expected to be after as many tokens: of small models with four replicas a stage.

Stages have fewer than --redundancy replicas only if there are too few machines. Not counted:
leaving and joining, second stages, checkpoints; nor that a machine whose memory just suffices for
its stage computes parts of it twice, which takes up to a third longer.

Trains nothing and uses no network; the cost of the model's parts is counted.

The flags of the run and the model are those of volunteer create, and so is what is chosen where
they do not say: it plans for strangers, with --private for people who trust each other.
"""

from functools import cache, partial
from typing import Annotated

import msgspec
from cyclopts import Group, Parameter, validators

from client.cli.founding.options import RUN, ModelChoices, PlanChoices
from client.cli.planning.answer import answer, report
from client.cli.planning.machines import (
    MAX_MACHINES,
    Kind,
    MachineChoices,
    machine_of,
    read_table,
    this_machine,
)
from client.cli.planning.run import chosen, founded
from client.cli.reach.home import find_home
from client.cli.terminal.answer import Answer, answered
from client.errors import UsageError

COST = Group("The cost", sort_key=4)
MOST_TOKENS = 10**18
Tokens = Annotated[int | None, Parameter(validator=validators.Number(gte=1, lte=MOST_TOKENS))]


@answered
def plan(
    *,
    swarm: Annotated[str | None, Parameter(group=RUN)] = None,
    machines: MachineChoices = MachineChoices(),  # noqa: B008  (frozen)
    run: PlanChoices = PlanChoices(),  # noqa: B008
    model: ModelChoices = ModelChoices(),  # noqa: B008
    tokens: Annotated[Tokens, Parameter(group=COST)] = None,
) -> Answer:
    """Say what machines would reach together, what limits them, and how best to cut the model.

    Args:
        swarm: Plan for a founded swarm: a .swarm file, or the name of one joined before; without it
            for a preset with the flags of volunteer create.
        tokens: Train so many tokens (default: those of the run).
    """
    home = find_home()
    kinds = _kinds(machines)
    count = sum(kind.count for kind in kinds)
    if count > MAX_MACHINES:
        raise UsageError(f"more than {MAX_MACHINES} machines", "plan for a part of them")
    planned = founded(home, swarm, run, model) if swarm else chosen(run, model, count)
    here = cache(partial(this_machine, home, planned.manifest.compute))
    volunteers = [one for kind in kinds for one in [machine_of(kind, here)] * kind.count]
    found = answer(planned, volunteers, tokens)
    return Answer(found, [*report(found), *(f"note: {note}" for note in found.notes)])


def _kinds(choices: MachineChoices) -> tuple[Kind, ...]:
    """Return the machines that the flags name, within the bounds of a table's."""
    given = {name: value for name, value in vars(choices).items() if value is not None}
    if (table := given.pop("table", None)) is not None:
        if given:
            flag = next(iter(given)).replace("_", "-")
            raise UsageError(f"--{flag} beside --table", "write that value into the table")
        return read_table(table)
    count = given.pop("machines", 4)
    try:
        return (msgspec.convert({"count": count, **given}, Kind),)
    except msgspec.ValidationError as error:
        problem, _, name = str(error).rstrip("`").partition(" - at `$.")
        flag = "machines" if name == "count" else name.replace("_", "-")
        raise UsageError(f"--{flag}: {problem}", "see volunteer plan --help") from error
