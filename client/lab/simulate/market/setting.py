"""The world's assumptions in one place: how machines, links and stages relate.

Constants and pure functions. The unit of account is the manifest's: a stage costs flops and bytes
per microbatch, and ``protocol.matching.preferences.rate`` makes c_vs of it, here as in the node.

The model is scaled so that the matching problem is the same at every S: 42 GB of state (3.5e9
parameters at 12 bytes) are cut into S equal stages, and the median machine is as fast as the stage
asks for, so that the median volunteer is compute-bound with ``HEADROOM`` x as much bandwidth as it
needs. (Cut finer on the same machines, a pipeline would become bound by the network alone.)
"""

from dataclasses import dataclass

from model_zoo.specs.data import DataSpec
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.state import ADAMW_STATE
from protocol.ids import peer_id_from_key
from protocol.manifest import Manifest, StageCost

STATE = ADAMW_STATE
STATE_BYTES = 42e9
TOKENS_PER_MICROBATCH = 2048
WIDTH = 2560
BOUNDARY_BYTES = TOKENS_PER_MICROBATCH * WIDTH * 33 / 32
"""One boundary tensor in S8: a byte a number and a scale for every 32."""

MEDIAN_BYTES_PER_S = 12.5e6
"""100 Mb/s, up as down."""

HEADROOM = 2.0
"""Bandwidth over need of the median volunteer at an inner stage."""

SIGMA = 0.8
"""Spread of the log-normal speeds and bandwidths (natural logarithm)."""

REGIONS = 10
END_TRAFFIC = 0.5
"""An end stage has one neighbour where the others have two."""

LAST_COMPUTE = 1.25
"""The last stage also computes the loss over the vocabulary."""

DETECTION_S = 45.0
"""Seconds until all know of a crash; throughput falls immediately."""

CRASH_SHARE = 0.7
"""Share of crashes among departures; the others are announced."""

OUTAGE_EVERY_S = 7200.0
"""Mean time between outages of a region."""

OUTAGE_SHARE = 0.6
"""Share of the region's members that crash together."""

RETURN_S = (60.0, 600.0)
"""Seconds after which each comes back as a newcomer."""

ARRIVAL_S = 60.0
"""All founders join within this time."""

STEP_S = 600.0
"""One optimizer step, in which a replica averages its stage once: large batches, as slow links need
them, whatever the number of volunteers. Until the first step closes every stage is at version 0,
which everybody derives from the manifest's seed, so nothing has to be fetched."""

AVERAGING_BYTES_PER_PARAMETER = 2.0
"""Bytes that a replica sends per step: every number once to its shard's owner and, as owner of a
share, once to each of the others, in S8."""

MESSAGE_DELAY_S = (0.02, 0.15)
MESSAGE_LOSS = 0.01
VIEW_S = 1.0
"""Interval at which changes of the membership view are passed on."""

ENVELOPE_BYTES = 150
"""Signer, signature, kind and framing around a signed body."""


@dataclass(frozen=True)
class Setting:
    """The identity of a simulated world; equal settings give equal worlds."""

    volunteers: int
    stages: int
    churn: float = 0.0
    """Share of the volunteers that leave per hour."""
    hours: float = 3.0
    seed: int = 0

    @property
    def horizon_s(self) -> float:
        """Length of the simulated time."""
        return self.hours * 3600.0

    @property
    def parameters_per_stage(self) -> int:
        """Parameters of one stage."""
        return round(STATE_BYTES / STATE.bytes_per_parameter / self.stages)

    @property
    def median_flops(self) -> float:
        """Speed of the median volunteer in floating point operations per second."""
        rate = MEDIAN_BYTES_PER_S / (2 * BOUNDARY_BYTES) / HEADROOM
        return rate * self._inner_flops

    @property
    def _inner_flops(self) -> float:
        """Forward and backward of one microbatch in an inner stage."""
        return 6.0 * self.parameters_per_stage * TOKENS_PER_MICROBATCH

    def stage_cost(self, stage: int) -> StageCost:
        """Return the cost of a stage."""
        last = stage == self.stages - 1
        traffic = 2 * BOUNDARY_BYTES * (END_TRAFFIC if last or stage == 0 else 1.0)
        return StageCost(
            layers=1,
            flops=self._inner_flops * (LAST_COMPUTE if last else 1.0),
            parameters=self.parameters_per_stage,
            uplink_bytes=traffic,
            downlink_bytes=traffic,
            memory_bytes=16.0 * self.parameters_per_stage,
        )


def manifest_of(setting: Setting) -> Manifest:
    """Return the manifest whose matching is simulated."""
    return Manifest(
        protocol=1,
        name=f"market-{setting.volunteers}-{setting.stages}",
        founder=peer_id_from_key(bytes(32)),
        created=0,
        seed=setting.seed,
        model=ModelSpec(
            "gpt", setting.stages, WIDTH, 20, 20, 4 * WIDTH, TOKENS_PER_MICROBATCH, 50304
        ),
        stages=tuple(setting.stage_cost(stage) for stage in range(setting.stages)),
        sequences_per_microbatch=1,
        microbatches_per_step=1024,
        steps=10_000,
        optimizer=OptimizerSpec(),
        data=DataSpec("text", 10**9, "0" * 64),
    )


def averaging_share(parameters: int, link_bytes_per_s: float) -> float:
    """Return the average share of a volunteer's link that averaging one more stage takes."""
    sent = parameters * AVERAGING_BYTES_PER_PARAMETER
    return min(1.0, sent / (link_bytes_per_s * STEP_S))
