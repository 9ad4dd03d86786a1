"""The effects of ``volunteer service install --system`` besides the unit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from client.cli.commands import service
from client.errors import UserError


def pretend_sysusers(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> Path:
    """Put a systemd-sysusers on PATH that notes its argument."""
    noted = folder / "noted"
    program = folder / "systemd-sysusers"
    program.write_text(f'#!/bin/sh\necho "$1" >"{noted}"\nexit {code}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(service, "SYSUSERS_FILE", folder / "sysusers.d" / "volunteer.conf")
    return noted


def test_the_user_of_the_system_service_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = pretend_sysusers(tmp_path, monkeypatch, 0)
    service._make_user()
    file = tmp_path / "sysusers.d" / "volunteer.conf"
    assert noted.read_text().strip() == str(file)
    assert "u volunteer " in file.read_text()


def test_a_user_that_cannot_be_made_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_sysusers(tmp_path, monkeypatch, 1)
    with pytest.raises(UserError, match="cannot make the user"):
        service._make_user()


@pytest.mark.parametrize("place", ["/home/ann/.local/bin/volunteer", "/root/venv/bin/volunteer"])
def test_a_command_that_the_service_cannot_see_is_refused(place: str) -> None:
    with pytest.raises(UserError, match="cannot see"):
        service._check_visible(Path(place))


def test_a_command_of_the_system_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/env")
    service._check_visible(Path("/opt/volunteer/bin/volunteer"))
