"""Simulate the matching of many volunteers and compare policies.

Group: try and measure

Nothing is trained and no network is used. One world per command; several policies see the same one.
"""

from typing import Annotated

from cyclopts import Parameter, validators

from client.cli.terminal.answer import Answer, answered
from client.errors import ExitCode, UserError
from client.lab.simulate.screen import Bar, report

DEFAULT_POLICIES = ("ours", "petals-0.95", "greedy-join")
MAX_VOLUNTEERS = 100_000
Count = Annotated[int, Parameter(validator=validators.Number(gte=1, lte=MAX_VOLUNTEERS))]


@answered
def simulate(
    *,
    volunteers: Count = 100,
    stages: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=256))] = 8,
    churn: Annotated[float, Parameter(validator=validators.Number(gte=0, lte=1000))] = 20.0,
    hours: Annotated[float, Parameter(validator=validators.Number(gt=0, lte=1000))] = 3.0,
    seed: Annotated[int, Parameter(validator=validators.Number(gte=0, lt=2**62))] = 0,
    policy: tuple[str, ...] = DEFAULT_POLICIES,
) -> Answer:
    """Simulate the matching of a swarm and compare policies.

    Args:
        volunteers: Volunteers, on average.
        stages: Stages of the pipeline.
        churn: Volunteers that leave and come per hour, in percent of all.
        hours: Simulated time.
        seed: Of everything random; the same seed is the same world.
        policy: Who decides; may be repeated. A wrong name shows the right ones.
    """
    from client.lab.simulate.market.catalogue import compare
    from client.lab.simulate.market.nature import draw
    from client.lab.simulate.market.setting import Setting

    check_policies(policy)
    nature = draw(Setting(volunteers, stages, churn / 100.0, hours, seed))
    with Bar() as bar:
        found = list(compare(nature, policy, bar.show))
    document = {
        "volunteers": volunteers,
        "stages": stages,
        "churn_per_hour": nature.setting.churn,
        "hours": hours,
        "seed": seed,
        "policies": found,
    }
    return Answer(document, report(nature.setting, found))


def check_policies(names: tuple[str, ...]) -> None:
    """Raise UserError for a policy that does not exist."""
    from client.lab.simulate.market.catalogue import POLICIES

    for name in names:
        if name not in POLICIES:
            raise UserError(
                f"there is no policy {name[:40]!r}",
                f"choose from {', '.join(POLICIES)}",
                ExitCode.USAGE,
            )
