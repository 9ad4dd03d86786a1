"""The Dockerfile: hadolint, a pinned base, no root, and everything that it copies."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.cli_process import apart

ROOT = Path(__file__).parents[2]
FILE = ROOT / "packaging" / "docker" / "Dockerfile"
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which(
    "hadolint"
)


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed")
def test_hadolint_has_nothing_to_say() -> None:
    verdict = apart(str(HADOLINT), "--no-color", str(FILE))
    assert (verdict.returncode, verdict.stdout) == (0, "")


def test_the_base_is_pinned_by_digest() -> None:
    (image,) = re.findall(r"(?m)^ARG PYTHON_IMAGE=(.*)$", FILE.read_text())
    assert re.fullmatch(r"python:3\.\d+-slim-\w+@sha256:[0-9a-f]{64}", image)
    assert re.findall(r"(?m)^FROM (\S+)", FILE.read_text()) == ["${PYTHON_IMAGE}"] * 2


def test_the_client_does_not_run_as_root() -> None:
    user = re.findall(r"(?m)^USER (.*)$", FILE.read_text())[-1]
    assert user == "10001:10001"


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    copies = re.findall(r"(?m)^COPY (?!--from)(.*) \S+$", FILE.read_text())
    names = " ".join(copies).split()
    assert {"pyproject.toml", "client", "protocol", "model_zoo"} <= set(names)
    for name in names:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignore
