"""The Kubernetes Jobs: their schema, what they may not do, and how their command ends."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from client.compute.hosts.job import job_of
from client.config import Settings
from tests.packaging.stand_ins import StandIns

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
FOLDER = Path(__file__).parents[2] / "packaging" / "kubernetes"
FILES = ("job.yaml", "group.yaml")


def documents(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / file).read_text()))


def one(kind: str, file: str) -> dict[str, Any]:
    (found,) = (each for each in documents(file) if each["kind"] == kind)
    return found


def pod(file: str) -> dict[str, Any]:
    spec: dict[str, Any] = one("Job", file)["spec"]["template"]["spec"]
    return spec


def container(file: str = "job.yaml") -> dict[str, Any]:
    (found,) = pod(file)["containers"]
    return dict(found)


def mounted(file: str, name: str) -> str:
    (mount,) = (m for m in container(file)["volumeMounts"] if m["name"] == name)
    return str(mount["mountPath"])


def start(stand_ins: StandIns, script: str | None = None) -> subprocess.Popen[bytes]:
    environment = {"PATH": f"{stand_ins.programs}:{os.environ['PATH']}"}
    (usual,) = container()["args"]
    return subprocess.Popen([*container()["command"], script or usual], env=environment)


@pytest.mark.parametrize(
    "document",
    [document for file in FILES for document in documents(file)],
    ids=lambda document: f"{document['metadata']['name']}-{document['kind']}",
)
def test_every_document_has_the_form_that_kubernetes_asks_for(document: dict[str, Any]) -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    validate.validate(document, validate.latest_version(), strict=True)


def test_a_misspelt_field_would_be_noticed() -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    job = one("Job", "job.yaml")
    job["spec"]["backofLimit"] = 1
    with pytest.raises(validate.ValidationError):
        validate.validate(job, validate.latest_version(), strict=True)


@pytest.mark.parametrize("file", FILES)
def test_the_pod_has_no_privileges(file: str) -> None:
    assert pod(file)["automountServiceAccountToken"] is False
    assert pod(file)["securityContext"]["runAsNonRoot"] is True
    assert container(file)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("file", FILES)
def test_the_invite_is_a_file_from_a_secret(file: str) -> None:
    (secret,) = (v for v in pod(file)["volumes"] if v["name"] == "swarm")
    assert "secret" in secret
    assert f"--swarm {mounted(file, 'swarm')}/" in container(file)["args"][0]


def test_the_pods_of_a_group_find_each_other() -> None:
    job, service = one("Job", "group.yaml"), one("Service", "group.yaml")
    count, name = job["spec"]["completions"], job["metadata"]["name"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["parallelism"] == count > 1
    assert service["spec"]["clusterIP"] == "None"
    assert (
        service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    )
    assert pod("group.yaml")["subdomain"] == service["metadata"]["name"]
    (claim,) = (v for v in pod("group.yaml")["volumes"] if "persistentVolumeClaim" in v)
    volume = one("PersistentVolumeClaim", "group.yaml")
    assert claim["persistentVolumeClaim"]["claimName"] == volume["metadata"]["name"]
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]
    told = {each["name"]: each.get("value") for each in container("group.yaml")["env"]}
    key = told.pop("VOLUNTEER_HOSTS_KEY_FILE")
    assert key.startswith(mounted("group.yaml", "hosts"))
    found = job_of(
        Settings(hosts=int(told["VOLUNTEER_HOSTS"])),
        {**told, "JOB_COMPLETION_INDEX": "1", "VOLUNTEER_HOSTS_KEY": "ab" * 32},
    )
    place = (f"{name}-0.{service['metadata']['name']}", int(told["MASTER_PORT"]))
    assert found is not None
    assert (found.hosts, found.index, (found.address, found.port)) == (count, 1, place)


def test_both_files_run_the_same_command() -> None:
    assert container("group.yaml")["args"] == container("job.yaml")["args"]


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
