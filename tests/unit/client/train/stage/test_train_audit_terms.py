"""What a seat's audits go by follows from the run."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from client.train.engine import Engine
from client.train.stage.stage_context import _audits_of
from protocol.verdicts import Verdicts
from tests.support.protocol_examples import manifest
from tests.support.recording_ports import RecordingPorts


def audits_of(**run: Any) -> Any:
    ports = RecordingPorts(run=manifest(**run))
    ports.membership = SimpleNamespace(verdicts=Verdicts())
    return _audits_of(cast(Engine, ports))


@pytest.mark.parametrize(("compute", "mixed"), [("fp32", False), ("bf16", True)])
@pytest.mark.parametrize(("codec", "coarse"), [("fp32", False), ("s8", True)])
def test_what_rounding_hides_is_allowed_for(
    compute: str, mixed: bool, codec: str, coarse: bool
) -> None:
    found = audits_of(audit_percent=3, compute=compute, averaging_codec=codec)
    assert (found.budget, found.mixed, found.coarse) == (0.03, mixed, coarse)
    assert found.secret != audits_of(audit_percent=3).secret, "nobody else knows what is drawn"


def test_a_run_without_audits_has_none() -> None:
    assert audits_of(audit_percent=0) is None
