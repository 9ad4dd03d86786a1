"""Amendments that tests sign, and what the founder of a test's run may amend."""

from dataclasses import dataclass

from msgspec import structs

from model_zoo.specs.local_rounds import LocalRounds
from model_zoo.specs.optimizer import OptimizerSpec
from protocol.amendments.amendment import Amendment, sign_amendment
from protocol.ids import PeerId, SwarmId
from protocol.wire.envelope import Signer
from protocol.wire.fields import Envelope

FOUNDER = Signer(b"\x07" * 32)


@dataclass(frozen=True)
class Run:
    """What a run begins with."""

    optimizer: OptimizerSpec
    steps: int
    stage_count: int
    founder: PeerId = FOUNDER.peer
    local_rounds: LocalRounds | None = None


def amendment(
    run: Run,
    swarm: SwarmId,
    *,
    number: int = 1,
    from_step: int = 0,
    steps: int | None = None,
    by: Signer = FOUNDER,
    **changes: object,
) -> Envelope:
    said = Amendment(
        number,
        from_step,
        run.steps if steps is None else steps,
        structs.replace(run.optimizer, **changes),
    )
    return sign_amendment(by, said, swarm)
