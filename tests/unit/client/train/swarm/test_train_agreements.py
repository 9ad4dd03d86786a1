"""Match records: both letters are laid together, outlive the process, and prove what they say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from client.store import agreements as store
from client.store.agreements import MAX_RECORDS, load_records, save_records
from client.store.packed import DamagedFile
from client.train.swarm.agreements import REMEMBERED_PROPOSALS, REWRITE_S, Agreements
from protocol.effects import Explain
from protocol.errors import RemoteProtocolError
from protocol.ids import Stage, SwarmId
from protocol.matching import bodies
from protocol.matching.bodies import Mandate
from protocol.matching.record import MatchRecord, read_record
from protocol.wire.envelope import Signer
from protocol.wire.messages import Signed

SWARM = SwarmId("ab" * 32)
ME, STEWARD, OTHER = (Signer(bytes([number]) * 32) for number in (1, 2, 3))
STAGE, MANDATE = Stage(1), Mandate(5, 1)
Damage = Callable[[bytes], bytes]


@dataclass
class Desk:
    """One volunteer's agreements and what it was told."""

    path: Path
    told: list[Explain] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agreements = Agreements(ME, SWARM, self.told.append)
        self.agreements.keep_in(self.path)

    def propose(self, version: int, **changes: object) -> Signed:
        return self.agreements.sign("propose", proposal(version, **changes))

    def hold(self, version: int, signer: Signer = STEWARD, **changes: object) -> None:
        letter = Signed(signer.sign("hold", hold(version, **changes), SWARM))
        self.agreements.open(signer.peer, letter)

    def agree(
        self,
        version: int,
        now: float = 0.0,
        stage: int = STAGE,
        mandate: Mandate = MANDATE,
        rate: int = 2_000_000,
    ) -> None:
        """The whole conversation about one place."""
        self.propose(version, stage=stage, mandate=mandate, rate=rate)
        self.hold(version, stage=stage, mandate=mandate)
        self.agreements.agreed(Stage(stage), version, now)

    def stored(self) -> list[int]:
        """Stages of the records on disk; all of them have to be valid."""
        return [read_record(record, SWARM).stage for record in load_records(self.path)]


def proposal(version: int, **changes: object) -> bytes:
    fields: dict[str, object] = {
        "stage": STAGE,
        "mandate": MANDATE,
        "issued_ms": 1000 + version,
        "steward": STEWARD.peer,
        "epoch": 1,
        "version": version,
        "seat": 0,
        "rate": 2_000_000,
        "status": "free",
    }
    return bodies.encode_body(bodies.Propose(**(fields | changes)))  # type: ignore[arg-type]


def hold(version: int, **changes: object) -> bytes:
    fields: dict[str, object] = {
        "stage": STAGE,
        "mandate": MANDATE,
        "issued_ms": 2000 + version,
        "volunteer": ME.peer,
        "epoch": 1,
        "version": version,
        "score": 7,
        "lease_ms": 1000,
        "locked": True,
    }
    return bodies.encode_body(bodies.Hold(**(fields | changes)))  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agreements" / "swarm.msgpack"


@pytest.mark.parametrize("status", ["free", "serving"])
def test_a_proposal_and_its_hold_become_a_record_that_outlives_the_process(
    path: Path, status: str
) -> None:
    desk = Desk(path)
    desk.propose(10, status=status)
    desk.hold(10)
    assert desk.stored() == []
    desk.agreements.agreed(STAGE, 10, 0.0)
    assert desk.stored() == [STAGE]
    match = Desk(path).agreements.newest(STAGE)
    assert match is not None
    assert (match.volunteer, match.steward, match.rate) == (ME.peer, STEWARD.peer, 2_000_000)
    assert (match.proposed_ms, match.held_ms) == (1010, 2010)


def test_a_hold_may_answer_an_earlier_message_of_the_bid(path: Path) -> None:
    desk = Desk(path)
    for version in (10, 11, 12):
        desk.propose(version)
    desk.hold(11)
    desk.agreements.agreed(STAGE, 11, 0.0)
    assert desk.stored() == [STAGE]


def test_what_was_sent_again_counts_in_its_last_form(path: Path) -> None:
    desk = Desk(path)
    desk.propose(10)
    desk.propose(10, issued_ms=1500)
    desk.hold(10)
    desk.agreements.agreed(STAGE, 10, 0.0)
    match = desk.agreements.newest(STAGE)
    assert match is not None
    assert match.proposed_ms == 1500


def test_proposals_are_forgotten_after_a_while(path: Path) -> None:
    desk = Desk(path)
    for version in range(1, REMEMBERED_PROPOSALS + 2):
        desk.propose(version)
    desk.hold(1)
    desk.agreements.agreed(STAGE, 1, 0.0)
    assert desk.stored() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 9},
        {"stage": 0},
        {"mandate": Mandate(5, 2)},
        {"volunteer": OTHER.peer},
        {"locked": False},
        {"signer": OTHER},
    ],
    ids=str,
)
def test_a_hold_of_something_else_makes_no_record(path: Path, changes: dict[str, object]) -> None:
    desk = Desk(path)
    desk.propose(10)
    desk.hold(**({"version": 10} | changes))  # type: ignore[arg-type]
    desk.agreements.agreed(STAGE, 10, 0.0)
    assert desk.agreements.newest(STAGE) is None
    assert not path.exists()


def test_our_own_steward_leaves_no_record(path: Path) -> None:
    """Its letters are never signed; the last HOLD of another steward is no answer to them."""
    desk = Desk(path)
    desk.agree(10)
    desk.agreements.agreed(Stage(0), 11, 0.0)
    desk.agreements.agreed(Stage(0), 10, 0.0)
    assert desk.stored() == [STAGE]


def test_one_record_of_each_place_and_the_newest_of_each(path: Path) -> None:
    desk = Desk(path)
    desk.agree(10)
    desk.agree(11, now=REWRITE_S, rate=3_000_000)
    desk.agree(12, mandate=Mandate(5, 2))
    desk.agree(13, stage=2)
    assert desk.stored() == [1, 1, 2]
    rates = [read_record(record, SWARM).rate for record in load_records(path)]
    assert rates == [3_000_000, 2_000_000, 2_000_000]


def test_renewals_spare_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, writes = Desk(path), list[Path]()

    def note(path: Path, records: Sequence[MatchRecord]) -> None:
        writes.append(path)

    monkeypatch.setattr("client.train.swarm.agreements.save_records", note)
    for version in range(10, 70):
        desk.agree(version, now=float(version))
    assert writes == [path]
    desk.agree(70, now=10 + REWRITE_S)
    assert writes == [path, path]
    match = desk.agreements.newest(STAGE)
    assert match is not None
    assert match.proposed_ms == 1070


def test_the_oldest_records_make_room(path: Path) -> None:
    desk = Desk(path)
    for term in range(1, MAX_RECORDS + 4):
        desk.agree(term, mandate=Mandate(5, term))
    assert len(load_records(path)) == MAX_RECORDS
    first = load_records(path)[0].hold
    assert bodies.decode_body("hold", first.body).mandate == Mandate(5, 4)


@pytest.mark.parametrize(
    "damage",
    [
        lambda encoded: b"",
        lambda encoded: encoded[:-1],
        lambda encoded: encoded + b"x",
        lambda encoded: b"\x92" * 5000,
        lambda encoded: msgspec.msgpack.encode({"schema_version": 2, "records": []}),
        lambda encoded: encoded + bytes(store.MAX_FILE_BYTES),
    ],
    ids=range(6),
)
def test_a_damaged_file_is_told_and_replaced(path: Path, damage: Damage) -> None:
    Desk(path).agree(10)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DamagedFile):
        load_records(path)
    desk = Desk(path)
    assert [(told.level, told.topic) for told in desk.told] == [("warning", "matching")]
    desk.agree(11)
    assert desk.stored() == [STAGE]


def test_a_folder_in_the_place_of_the_file_stops_nothing(path: Path) -> None:
    path.mkdir(parents=True)
    desk = Desk(path)
    desk.agree(10)
    assert [told.level for told in desk.told] == ["warning", "warning"]
    assert desk.agreements.newest(STAGE) is not None


def test_a_tampered_record_is_told_and_forgotten(path: Path) -> None:
    Desk(path).agree(10)
    Desk(path).agree(11, stage=2)
    genuine, other = load_records(path)
    forged = msgspec.structs.replace(genuine.proposal, body=proposal(10, rate=9_000_000))
    save_records(path, [MatchRecord(forged, genuine.hold), other])
    desk = Desk(path)
    assert ["not genuine" in told.words for told in desk.told] == [True]
    assert desk.agreements.newest(STAGE) is None
    assert desk.agreements.newest(Stage(2)) is not None


def test_a_letter_is_brought_by_its_author(path: Path) -> None:
    desk = Desk(path)
    letter = Signed(STEWARD.sign("hold", hold(10), SWARM))
    with pytest.raises(RemoteProtocolError, match="signed-by-another"):
        desk.agreements.open(OTHER.peer, letter)
    foreign = Signed(STEWARD.sign("hold", hold(10), "another swarm"))
    with pytest.raises(RemoteProtocolError, match="bad-signature"):
        desk.agreements.open(STEWARD.peer, foreign)
    desk.propose(10)
    desk.agreements.agreed(STAGE, 10, 0.0)
    assert desk.agreements.newest(STAGE) is None
