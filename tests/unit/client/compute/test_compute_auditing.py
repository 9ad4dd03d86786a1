"""Audits on real stages: honest replicas agree, lies do not, and the step goes on undisturbed."""

import math

import pytest
import torch

from client.compute.payload import SEAL_BYTES, seal
from client.compute.requests import Load, Save
from model_zoo.specs.aggregation import RULES
from model_zoo.specs.model import ModelSpec
from protocol.audit import record
from protocol.audit.record import Grade, grade
from protocol.pipeline.effects import CompareTask, KeepVersionTask, PassTask
from tests.support.audited_stage import AUDITOR, LIES, AuditedStage
from tests.support.codecs import encode
from tests.support.compute_rounds import (
    CODECS,
    accumulate,
    bounds_of,
    close_round,
    contributions,
    reduce_task,
)
from tests.support.compute_stages import opened
from tests.support.other_process import OtherProcess

SHARES = [(4, 4), (1, 7), (3, 3, 3)]


def worst(audited):
    return max(audited.boundary, audited.compared[0])


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize(
    ("averaging", "boundary"), [("fp32", "s8"), ("bf16", "s8"), ("s8", "s8"), ("fp32", "s4")]
)
@pytest.mark.parametrize("shares", SHARES)
def test_honest_replicas_agree(stage, averaging, boundary, shares):
    """Of boundaries in four bits what was rounded by chance, too, is computed again."""
    swarm = AuditedStage(stage, shares, averaging=averaging, boundary=boundary)
    swarm.train(1)
    for _ in range(3):
        audited = swarm.audit()
        assert worst(audited) == 0.0  # the same machine and threads: the same bits
        assert audited.grade is Grade.AGREES


def test_a_machine_that_rounds_otherwise_agrees_and_makes_the_same_versions():
    """``close`` compares the versions; passes in bf16 differ by a hundred thousand times more."""
    elsewhere = OtherProcess()
    try:
        for precision, least, most in (("fp32", 1e-9, 1e-5), ("bf16", 1e-5, 1e-2)):
            swarm = AuditedStage(
                1, (2, 2), averaging="fp32", precision=precision, elsewhere=elsewhere
            )
            swarm.train(1)
            audited = swarm.audit()
            assert audited.grade is Grade.AGREES
            assert least < worst(audited) < most
    finally:
        elsewhere.close()


@pytest.mark.parametrize("boundary", ["s8", "s4"])
@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("name", LIES)
def test_lies_do_not_agree(stage, name, boundary):
    swarm = AuditedStage(stage, averaging="fp32", boundary=boundary)
    swarm.train(2)
    assert swarm.audit(LIES[name]).grade is not Grade.AGREES


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("name", LIES)
def test_coarse_averaging_hides_small_noise_only(stage, name):
    """The residual of error feedback is the member's own claim: it hides noise up to its size."""
    swarm = AuditedStage(stage, averaging="s8")
    swarm.train(2)
    hidden = {"1 % noise": Grade.AGREES, "x 1.02": Grade.DOUBTFUL}
    assert swarm.audit(LIES[name]).grade is hidden.get(name, Grade.LIES)


@pytest.mark.parametrize("stage", [0, 1])
def test_an_audit_leaves_the_step_under_way_alone(stage):
    audited, plain = (AuditedStage(stage, averaging="s8") for _ in range(2))
    for swarm in (audited, plain):
        swarm.train(2)
    audited.audit()
    plain.train(1)
    audited.train(1)
    plain.train(1)
    hashes = [swarm.members[AUDITOR].replica.state_hash() for swarm in (audited, plain)]
    assert hashes[0] == hashes[1]


def audit_begun():
    """An auditor that has kept the version before the newest step; what is shown to it."""
    swarm = AuditedStage(1, averaging="fp32")
    swarm.train(1)
    return swarm.members[AUDITOR], swarm.begin()


def asked(shown, **changes):
    fields = {"step": 1, "microbatch": 1000} | changes
    return PassTask(into="audit", **fields), *shown.work[1000].payloads


def test_a_microbatch_counts_once_in_an_audit():
    auditor, shown = audit_begun()
    auditor.call(*asked(shown))
    assert auditor.fails(*asked(shown)).kind == "ledger"


def test_what_was_not_kept_is_not_audited():
    auditor, shown = audit_begun()
    assert auditor.fails(*asked(shown, step=0)).kind == "stale"
    assert auditor.fails(CompareTask(step=0, bounds=shown.bounds), *shown.segments).kind == "stale"
    assert auditor.fails(KeepVersionTask(step=1)).kind == "stale"  # the version has gone on
    compare = CompareTask(step=1, bounds=shown.bounds)
    compared, _ = auditor.call(compare, *shown.segments)
    assert compared.apart[0] == math.inf, "nothing is right where no microbatch was given"
    assert auditor.fails(*asked(shown)).kind == "stale"  # that audit is over


def test_another_version_ends_the_audit(tmp_path):
    auditor, shown = audit_begun()
    path = str(tmp_path / "state")
    auditor.call(Save(version=2, path=path, durable=False))
    auditor.call(Load(path=path, version=2))
    assert auditor.fails(*asked(shown)).kind == "stale"
    # nor can a contribution to the next step be judged without having seen this one's sum
    assert auditor.fails(KeepVersionTask(step=2)).kind == "stale"


def test_damaged_payloads_are_named():
    auditor, shown = audit_begun()
    request, given, tokens, claimed = asked(shown)
    damaged = claimed[:-1] + bytes([claimed[-1] ^ 1])
    failure = auditor.fails(request, given, tokens, damaged)
    assert (failure.kind, failure.part) == ("codec", 2)
    assert auditor.fails(request, given, tokens).kind == "shape"
    auditor.call(request, given, tokens, claimed)  # and nothing was counted by then
    compare, sent = CompareTask(step=1, bounds=shown.bounds), shown.segments
    assert auditor.fails(compare, *sent[:-1]).kind == "shape"
    for bad in (sent[-1][:-4], b""):
        failure = auditor.fails(compare, *sent[:-1], bad)
        assert (failure.kind, failure.part) == ("codec", len(sent) - 1)


def test_a_false_gradient_to_a_neighbour_is_seen():
    auditor, shown = audit_begun()
    false = encode(torch.ones(auditor.replica.wire.boundary_shape), "s8", direction="backward")
    seal(false)
    request, given, tokens, _ = asked(shown)
    reply, _ = auditor.call(request, given, tokens, false)
    assert reply.apart[1] > 0.5
    assert reply.loss_sum > 0


def test_a_small_share_of_a_large_step_is_not_doubted():
    """The rounding of a whole step's sum comes back in the contribution of one microbatch: along so
    small a gradient it was above the tolerance in three of ten audits, enough for a charge."""
    model = ModelSpec("gpt", 2, 8, 2, 2, 32, 8, 256)
    swarm = AuditedStage(1, (1, 30), model=model, averaging="s8", sequences=1)
    swarm.train(2)
    for _ in range(10):
        audited = swarm.audit()
        assert audited.grade is Grade.AGREES


@pytest.mark.slow
def test_a_step_after_one_ten_times_as_large_is_not_doubted():
    """What rounding took from the step before comes back in this one: 4.4 times the deviation that
    independent roundings would have along so small a gradient, once in 2,400 honest ones."""
    model = ModelSpec("gpt", 2, 8, 2, 2, 32, 8, 256)
    swarm = AuditedStage(
        1,
        (1, 0, 1, 1, 1),
        model=model,
        boundary="fp32",
        sequences=2,
        first=255607,
        threads=(1, 1, 2, 3, 4),
    )
    swarm.train(26)
    audited = swarm.audit()
    assert audited.grade is Grade.AGREES


def test_what_a_small_share_hides_along_the_gradient_is_not_its_absence():
    for name in ("x -10", "zero"):
        swarm = AuditedStage(0, (1, 6), averaging="s8", sequences=1)
        swarm.train(2)
        assert swarm.audit(LIES[name]).grade is not Grade.AGREES


@pytest.mark.parametrize(("apart", "grade"), [(2e-4, Grade.AGREES), (0.05, Grade.LIES)])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_four_bits_are_compared_as_they_were_before_coding(direction, apart, grade):
    swarm = AuditedStage(1, boundary="s4")
    wire, auditor = swarm.members[AUDITOR].replica.wire, swarm.members[AUDITOR].executor
    generator = torch.Generator().manual_seed(3)
    ours, noise = torch.randn((2, *wire.boundary_shape), generator=generator)
    sent = [
        wire.boundary_out(each, direction, of=(7, 8)).now().ready()
        for each in (ours + apart * noise, ours)
    ]
    found = auditor._stage._apart(*sent, direction, 0)
    assert found <= apart, "rounding makes nobody seem further off"
    assert record.grade(found) is grade


def test_one_group_of_a_small_tensor_may_be_rounded_otherwise():
    """Other threads add in another order: where a number lies between two steps of S8, that is a
    whole step, above the tolerance in a tensor of 64 numbers; a group's scale is rounded, too."""
    model = ModelSpec("gpt", 2, 8, 2, 2, 32, 8, 256)
    swarm = AuditedStage(1, model=model, sequences=1, boundary="s8")
    wire, auditor = swarm.members[AUDITOR].replica.wire, swarm.members[AUDITOR].executor
    tensor = torch.linspace(-1, 1, 64).view(wire.boundary_shape)
    step, scaled = tensor.clone(), tensor * 1.02
    step[0, 0, 3] += 1 / 100

    def apart(other: torch.Tensor) -> float:
        sent = [wire.boundary_out(each, "forward").now().ready() for each in (other, tensor)]
        return auditor._stage._apart(*sent, "forward", 0)

    assert apart(tensor) == apart(step) == 0
    assert apart(scaled) > 1e-2


# --- a segment that is summed again by another replica than its owner


class Round:
    """Three replicas that have contributed to a step, the second one so many ``times`` what it has
    computed; the first owns segment 1."""

    def __init__(self, rule: str, codec: str, times: float = 1.0) -> None:
        self.workers = [opened(0, [4], averaging=codec, aggregation=rule) for _ in range(3)]
        self.bounds = bounds_of(self.workers[0], 3)
        accumulate(self.workers, 0)
        close_round(self.workers, 0)  # so that the second moment knows what is usual
        accumulate(self.workers, 1)
        self.workers[1].replica.gradient_sum.mul_(times)
        self.sent = [parts[1] for parts in contributions(self.workers, 1, attempt=1)]
        request = reduce_task(step=1, attempt=1, segment=1, microbatches=[2] * 3, own=0)
        _, (self.sum,) = self.workers[0].call(request, *self.sent[1:])

    def again(
        self, claimed: bytes, parts: list[bytes] | None = None, times_since: float = 0.0
    ) -> float:
        """Have the third replica sum segment 1 again, maybe after all have contributed so many
        times what the first one has computed."""
        self.workers[2].call(KeepVersionTask(step=1, bounds=self.bounds, segment=1))
        if times_since:
            long = self.workers[0].replica.gradient_sum * times_since
            for worker in self.workers:
                worker.replica.gradient_sum.copy_(long)
            close_round(self.workers, 1, attempt=2)
        request = reduce_task(step=1, attempt=1, segment=1, microbatches=[2] * 3, own=None)
        reply, _ = self.workers[2].call(request, *(parts or self.sent), claimed)
        return reply.apart[0]

    def scaled(self, times: float) -> bytes:
        """What an owner sends that lies about its sum."""
        wire, size = self.workers[0].replica.wire, self.bounds[2] - self.bounds[1]
        numbers = torch.empty(size)
        wire.segment_back(self.sum, numbers)
        return bytes(wire.segment_out(numbers * times))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("codec", CODECS)
def test_an_honest_sum_agrees_and_a_false_one_does_not(rule: str, codec: str) -> None:
    one = Round(rule, codec)
    assert one.again(one.sum) == 0.0, "to the bit, on one machine"
    for times in (-10.0, -1.0, 0.0, 1.5):
        assert grade(one.again(one.scaled(times))) is Grade.LIES


@pytest.mark.parametrize("times", [9e2, 1e5, 1e13])
def test_an_owner_may_leave_out_what_is_absurd_alone(times: float) -> None:
    """Where that begins depends on the steps that it has seen before, and on none that came since:
    else who makes one of them long would have it found false."""
    one = Round("sum", "fp32", times)
    without = [one.sent[0], one.scaled(0.0), one.sent[2]]
    kept = (times < 1e4) == (one.again(one.sum, without) > 0)
    assert kept, "the owner has left out what is 1e4 times as long as usual"
    assert grade(one.again(one.scaled(0.0))) is Grade.LIES
    assert one.again(one.sum, times_since=1e4) == 0.0


def test_a_contribution_that_is_left_out_is_found() -> None:
    """Also if its owner shows other bytes under the seal that was signed; what is no contribution
    under its seal an owner has to leave out."""
    one = Round("sum", "s8")
    twice = [one.sent[0], one.sent[1], one.sent[1]]
    assert grade(one.again(one.sum, twice)) is Grade.LIES
    changed = bytes(one.sent[2])[:-1] + bytes([one.sent[2][-1] ^ 1])
    with pytest.raises(AssertionError, match="codec"):
        one.again(one.sum, [*one.sent[:2], changed])
    seal(none := bytearray(SEAL_BYTES + 1))
    assert grade(one.again(one.sum, [*one.sent[:2], bytes(none)])) is Grade.LIES


def test_a_check_changes_nothing_at_the_replica_that_makes_it() -> None:
    one = Round("sum", "s8")
    before = one.workers[2].replica.state_hash(), one.workers[2].replica.gradient_sum.clone()
    one.again(one.scaled(-10.0))
    assert one.workers[2].replica.state_hash() == before[0]
    assert torch.equal(one.workers[2].replica.gradient_sum, before[1])
