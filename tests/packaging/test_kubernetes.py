"""The Kubernetes Job: its schema, what it may not do, and how its command ends."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.stand_ins import StandIns

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
FILE = Path(__file__).parents[2] / "packaging" / "kubernetes" / "job.yaml"


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(FILE.read_text()))


def job() -> dict[str, Any]:
    (found,) = (each for each in documents() if each["kind"] == "Job")
    return found


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = job()["spec"]["template"]["spec"]
    return spec


def container() -> dict[str, Any]:
    (found,) = pod()["containers"]
    return dict(found)


def start(stand_ins: StandIns, script: str | None = None) -> subprocess.Popen[bytes]:
    environment = {"PATH": f"{stand_ins.programs}:{os.environ['PATH']}"}
    (usual,) = container()["args"]
    return subprocess.Popen([*container()["command"], script or usual], env=environment)


@pytest.mark.parametrize(
    "document",
    documents(),
    ids=lambda document: f"{document['metadata']['name']}-{document['kind']}",
)
def test_every_document_has_the_form_that_kubernetes_asks_for(document: dict[str, Any]) -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    validate.validate(document, validate.latest_version(), strict=True)


def test_the_pod_has_no_privileges() -> None:
    assert pod()["automountServiceAccountToken"] is False
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_pod_that_must_leave_leaves_in_order_and_does_not_complete_the_job(
    tmp_path: Path,
) -> None:
    stand_ins = StandIns(tmp_path)
    process = start(stand_ins)
    stand_ins.wait_until_noted("ready")
    process.send_signal(signal.SIGTERM)
    try:
        assert process.wait(60) == 75
    finally:
        process.kill()
    assert "said goodbye" in stand_ins.lines()


def test_a_pod_that_must_leave_before_its_client_has_started_leaves(tmp_path: Path) -> None:
    stand_ins = StandIns(tmp_path)
    (script,) = container()["args"]
    asked_early = script.replace("volunteer join", "kill -TERM $$; volunteer join", 1)
    process = start(stand_ins, asked_early)
    try:
        assert process.wait(60) == 75
    finally:
        process.kill()


@pytest.mark.parametrize("code", [0, 69, 77])
def test_a_client_that_ends_by_itself_tells_kubernetes_how(code: int, tmp_path: Path) -> None:
    stand_ins = StandIns(tmp_path)
    stand_ins.client_ends_with(code)
    assert start(stand_ins).wait(60) == code
