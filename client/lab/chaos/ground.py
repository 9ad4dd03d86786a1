"""The common ground of runs: one signed manifest, so that a pair trains the same steps.

Imports torch.
"""

from dataclasses import replace
from pathlib import Path

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.options import AveragingName, ModelChoices, OptimizerChoices, RunChoices
from client.lab.founding import found_lab
from client.lab.local_swarm import DATA
from client.store.identity import ensure_identity
from client.store.paths import make_private
from protocol.address import Address

STEPS = 10_000
CHECKPOINT_EVERY = 5
MODEL = ModelChoices(layers=4, width=64, heads=4, context=64)
LOCAL_MODEL = replace(MODEL, width=32)
"""One process makes its rounds again; Muon's matrices would take it longer than the run."""
INNER_STEPS = 8
"""Of each replica in a local round, if they share it evenly."""
OPTIMIZER = OptimizerChoices(lr=1e-3, warmup_steps=10, decay_steps=STEPS)


class Ground:
    """A founded swarm without members.

    Args:
        folder: for the founder's identity, and the training data.
        run, model, optimizer: what is founded.
    """

    def __init__(
        self,
        folder: Path,
        run: RunChoices,
        model: ModelChoices = ModelChoices(),  # noqa: B008  (frozen)
        optimizer: OptimizerChoices = OptimizerChoices(),  # noqa: B008  (frozen)
    ) -> None:
        signer = ensure_identity(make_private(folder))
        self.data = folder / DATA
        self.manifest = found_lab(folder, signer.peer, run, model, optimizer).manifest
        self.swarm = sign(self.manifest, signer, ())
        """Nobody's address is in it yet."""

    def write(self, path: Path, member: Address) -> None:
        """Write the swarm file with the address of a first member, and put the data beside it."""
        write_swarm_file(path, replace(self.swarm, peers=(member,)))
        path.with_name(DATA).symlink_to(self.data)


def chaos_ground(
    folder: Path,
    *,
    stages: int,
    replicas: int,
    seed: int,
    averaging: AveragingName = "every-step",
    small: bool = False,
) -> Ground:
    """Return the ground of a pair of runs; ``small``: the least useful model and step, for tests.

    The wire formats are fp32: S8 keeps residuals at each replica, which a kill loses, so that two
    runs would differ by more than the order of sums. In local rounds losses are compared with those
    of one process, whose sums are exact, too.
    """
    local = averaging == "local"
    run = RunChoices(
        averaging=averaging,
        inner_microbatches=1 if local else None,
        optimizer="muon" if local else "adamw",
        name="chaos",
        steps=STEPS,
        stages=stages,
        sequences=2 if small else 4,
        microbatches=INNER_STEPS * replicas if local else 8 if small else 16,
        redundancy=replicas,
        checkpoint_every=CHECKPOINT_EVERY,
        dual_homing=False,
        seed=seed,
        measure=False,
        boundary_codec="fp32",
        averaging_codec="fp32",
    )
    model = LOCAL_MODEL if local else MODEL
    if small:
        model = ModelChoices(layers=stages, width=32, heads=2, context=16)
    return Ground(folder, run, model, OPTIMIZER)
