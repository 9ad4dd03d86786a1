"""A machine that refuses: users without a home, folders of others, no room, no open output."""

import errno
import io
import os
import pwd
import sys
from pathlib import Path

import pytest

from client.cli import command_line
from client.errors import OF_THE_MACHINE, ExitCode
from tests.support.cli_process import Within, apart
from tests.support.full_disk import full


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whom the machine does not know, as in containers with a number for a user."""

    def unknown(user: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {user}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for variable in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.usefixtures("nobody")
class TestUnknownUser:
    def test_without_a_home_it_is_told_what_to_set(
        self, within: Within, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("VOLUNTEER_HOME")
        for command in (["status"], ["config", "show"], ["doctor"]):
            done = within(*command)
            assert done.returncode == ExitCode.CONFIG, command
            assert "has no home folder" in done.stderr
            assert "VOLUNTEER_HOME" in done.stderr

    def test_with_one_of_its_own_nothing_is_missing(self, home: Path, within: Within) -> None:
        assert within("config", "show").returncode == ExitCode.OK
        assert within("status").returncode == ExitCode.NOT_RUNNING


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_home_below_a_folder_of_another_user_is_named(tmp_path: Path) -> None:
    """Root may enter every folder, but not in a namespace of its own."""
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    os.chown(other, 1, 1)
    program = (
        "import sys; from client.cli.commands import doctor; from client.cli.main import run\n"
        "doctor.HEAVY = ()\n"
        "print([run(each.split()) for each in sys.argv[1:]])"
    )
    commands = ("status", "logs", "doctor")
    done = apart(
        *("unshare", "-U", "--map-root-user", sys.executable, "-c", program, *commands),
        VOLUNTEER_HOME=str(other / "home"),
    )
    if "unshare" in done.stderr:
        pytest.skip("no namespaces here")
    assert "internal error" not in done.stderr
    assert "Permission denied" in done.stderr
    assert "fail data folder" in done.stdout
    assert done.stdout.endswith("[3, 1, 1]\n")


@pytest.mark.parametrize("number", OF_THE_MACHINE)
@pytest.mark.parametrize("grouped", [False, True])
def test_what_the_machine_refuses_is_no_fault_of_the_program(
    within: Within, monkeypatch: pytest.MonkeyPatch, number: int, grouped: bool
) -> None:
    error = OSError(number, os.strerror(number), "/some/file")

    def command(tokens: object, **how: object) -> int:
        raise ExceptionGroup("", [error]) if grouped else error

    monkeypatch.setattr(command_line, "build_app", lambda: command)
    done = within.ends(ExitCode.RUNTIME, "status")
    assert f"cannot use /some/file: {os.strerror(number)}" in done.stderr
    assert OF_THE_MACHINE[number] in done.stderr
    error.errno = errno.ENOENT
    assert "internal error" in within("status").stderr, "we should have looked"


class Full(io.StringIO):
    """An output on a full disk."""

    write = full


def test_an_output_that_is_full_is_named(
    home: Path, within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", Full())
    done = within.ends(ExitCode.RUNTIME, "config", "show")
    assert "volunteer: No space left on device" in done.stderr
    monkeypatch.setattr(sys, "stderr", Full())
    assert within("status").returncode == ExitCode.NOT_RUNNING


def test_a_closed_output_changes_no_result(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "client.cli.main", "config", "show")
    done = apart("sh", "-c", 'exec "$@" >&- <&-', "sh", *command, VOLUNTEER_HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
