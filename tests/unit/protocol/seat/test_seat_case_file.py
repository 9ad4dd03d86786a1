"""What one of two replicas shows to umpires: its case, for a while, and not without end."""

from __future__ import annotations

from protocol.audit.audit import Subject
from protocol.audit.charges import KIND
from protocol.effects import Send
from protocol.pipeline.effects import PayloadKey
from protocol.seat.case_file import AGAIN, KEPT_S, TELL_AGAIN_S, CaseFile
from protocol.wire.fields import Envelope
from protocol.wire.messages import Case, CaseReply, CaseRequest
from tests.support.protocol_examples import peer

STAGE, BESIDE, STEP, ATTEMPT = 1, 0, 7, 2
MEMBER, UMPIRE, OTHER = (peer(n) for n in (2, 3, 4))
CHARGE = Envelope(peer(1), KIND, b"charge", bytes(64))
COMMITMENT = Envelope(MEMBER, "commitment", b"said", bytes(64))
TENSORS = ("input", "tokens", "grad_out")
SUBJECT = Subject(
    member=MEMBER,
    stage=STAGE,
    step=STEP,
    attempt=ATTEMPT,
    era=0,
    counted=frozenset({28, 29}),
    bounds=(0, 64, 128),
    segments=(b"s" * 32, b"t" * 32),
    held=(),
    tensors=TENSORS,  # type: ignore[arg-type]
    coarse=False,
)
UMPIRES = {(UMPIRE, BESIDE), (OTHER, BESIDE)}
LIST = CaseRequest(STAGE, BESIDE, STEP, ATTEMPT, MEMBER, "list", 0)


def opened() -> CaseFile:
    file = CaseFile()
    file.open(SUBJECT, COMMITMENT, 2.5, 0.0)
    file.charged(CHARGE, MEMBER, STEP)
    return file


def test_umpires_are_told_until_they_ask() -> None:
    file = opened()
    case = Case(BESIDE, CHARGE, COMMITMENT, [0, 64, 128], 2.5)
    everybody = [Send(each, case) for each in sorted((UMPIRE, OTHER))]
    assert file.tick(UMPIRES, 0.0) == everybody
    assert file.tick(UMPIRES, TELL_AGAIN_S - 0.1) == []
    file.show(UMPIRE, LIST)
    assert file.tick(UMPIRES, TELL_AGAIN_S) == [Send(OTHER, case)]


def test_nobody_is_told_before_the_charge_is_signed() -> None:
    file = CaseFile()
    file.open(SUBJECT, COMMITMENT, 2.5, 0.0)
    file.charged(CHARGE, MEMBER, STEP - 1)
    file.charged(CHARGE, OTHER, STEP)
    assert file.tick(UMPIRES, 0.0) == []


def test_what_is_asked_for_is_what_the_member_has_shown() -> None:
    [shown] = opened().show(UMPIRE, LIST)
    assert shown.keys == (PayloadKey(STEP, "list", 0, ATTEMPT, MEMBER),)
    assert shown.message == CaseReply(BESIDE, STEP, ATTEMPT, MEMBER, "list", 0)


def test_nothing_else_is_shown() -> None:
    file = opened()
    for step, attempt, member, name in [
        (STEP + 1, ATTEMPT, MEMBER, "list"),
        (STEP, ATTEMPT + 1, MEMBER, "list"),
        (STEP, ATTEMPT, OTHER, "list"),
        (STEP, ATTEMPT, MEMBER, "commitment"),
    ]:
        asked = CaseRequest(STAGE, BESIDE, step, attempt, member, name, 0)  # type: ignore[arg-type]
        assert file.show(UMPIRE, asked) == []
    assert CaseFile().show(UMPIRE, LIST) == []


def test_an_umpire_that_asks_without_end_is_shown_each_payload_twice() -> None:
    file = opened()
    payloads = 1 + 2 * len(TENSORS) + 2
    assert sum(len(file.show(UMPIRE, LIST)) for _ in range(1000)) == 2 * payloads + AGAIN
    assert file.show(OTHER, LIST), "of each by itself"


def test_it_is_kept_for_a_while_or_until_the_member_is_out() -> None:
    file = opened()
    assert (file.step, file.member) == (STEP, MEMBER)
    file.close(OTHER)
    assert file.step == STEP
    file.tick(UMPIRES, KEPT_S)
    assert file.step is None
    assert file.next_deadline() is None
    file = opened()
    file.close(MEMBER)
    assert file.step is None
