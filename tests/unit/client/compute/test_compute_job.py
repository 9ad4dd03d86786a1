"""Which host of a job this is, from what launchers set."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.compute.hosts.job import Job, first_node, job_of, parse_key, parse_place
from client.config import Settings
from client.errors import ConfigError

KEY = bytes(range(32))
ALL = Settings(hosts=0)
WITH_KEY = {"VOLUNTEER_HOSTS_KEY": KEY.hex()}
SLURM = {
    "SLURM_JOB_ID": "1234567",
    "SLURM_NNODES": "3",
    "SLURM_NODEID": "2",
    "SLURM_JOB_NODELIST": "n[004-005,9],other",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (SLURM, Job(3, 2, "n004", 24567, KEY)),
        (
            {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400"},
            Job(2, 0, "10.0.0.1", 29400, KEY),
        ),
        (
            {
                "GROUP_WORLD_SIZE": "2",
                "GROUP_RANK": "1",
                "MASTER_ADDR": "n1",
                "MASTER_PORT": "29400",
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            },
            Job(2, 1, "n1", 29401, KEY),
        ),
        (
            {
                "NNODES": "4",
                "JOB_COMPLETION_INDEX": "3",
                "MASTER_ADDR": "group-0.group",
                "MASTER_PORT": "29400",
            },
            Job(4, 3, "group-0.group", 29400, KEY),
        ),
        ({**SLURM, "SLURM_STEP_NUM_NODES": "1"}, None),
        ({"NNODES": "1"}, None),
    ],
)
def test_launchers_tell_the_job(environ: dict[str, str], expected: Job | None) -> None:
    assert job_of(ALL, {**environ, **WITH_KEY}) == expected


def test_options_come_before_variables(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(KEY.hex() + "\n")
    key.chmod(0o600)
    settings = Settings(
        hosts=2, host_index=1, hosts_address="[fd00::1]:7000", hosts_key_file=str(key)
    )
    environ = {**SLURM, "VOLUNTEER_HOSTS_KEY": "0" * 64}
    assert job_of(settings, environ) == Job(2, 1, "fd00::1", 7000, KEY)


def test_a_job_is_nothing_unless_it_is_asked_for() -> None:
    assert job_of(Settings(), {**SLURM, **WITH_KEY}) is None


@pytest.mark.parametrize(
    ("settings", "environ", "words"),
    [
        (ALL, WITH_KEY, "the number of hosts is unknown"),
        (ALL, {**SLURM, "SLURM_NNODES": "many"}, "'many', which is no number"),
        (ALL, {**SLURM, "SLURM_NNODES": "65"}, "65 hosts are no group"),
        (ALL, {**SLURM, "SLURM_NODEID": "3"}, "no host 3 of 3"),
        (Settings(hosts=2), WITH_KEY, "the index of this host is unknown"),
        (Settings(hosts=2, host_index=0), WITH_KEY, "the first host is unknown"),
        (Settings(hosts=2, host_index=0, hosts_address="n1"), WITH_KEY, "no host and port"),
        (ALL, SLURM, "need a key that they share"),
        (ALL, {**SLURM, "VOLUNTEER_HOSTS_KEY": "short"}, "no key of 32 bytes"),
        (Settings(hosts=0, hosts_key_file="/nowhere/key"), SLURM, "cannot read the job's key"),
    ],
)
def test_what_is_missing_is_named(settings: Settings, environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        job_of(settings, environ)


def test_a_key_that_everybody_reads_is_none(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(KEY)
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="open to every user"):
        job_of(Settings(hosts=0, hosts_key_file=str(key)), SLURM)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n[1-3]", "n1"),
        ("rack-2-n[07,09]-ib,n5", "rack-2-n07-ib"),
        ("a.example,b.example", "a.example"),
    ],
)
def test_the_first_of_slurms_nodes(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


@pytest.mark.parametrize(
    "text", ["", "n1:", "n1:0", "n1:65536", "n1 n2:5", ":5", "[n1]:5", "n1:a", "a..b:5"]
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_place(text)


def test_a_key_is_bytes_or_digits_and_is_not_shown() -> None:
    assert parse_key(KEY, "") == parse_key(KEY.hex().encode() + b"\n", "") == KEY
    assert KEY.hex() not in repr(Job(2, 0, "n", 1, KEY))
    assert repr(KEY) not in repr(Job(2, 0, "n", 1, KEY))
