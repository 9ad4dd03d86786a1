"""The service files that the wheel carries: what systemd and launchd say to them.

``packaging/`` links to the same files; one test keeps the links honest.
"""

from __future__ import annotations

import plistlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from client import packaging_data
from client.packaging_data import COMMANDS, FILES, Kind, service_file
from tests.support.cli_process import apart

ROOT = Path(__file__).parents[2]
EXPOSURE_AT_MOST = 3.0
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
UNITS: tuple[Kind, ...] = ("system", "user")
NAMES = ("volunteer.service", "volunteer@.service", "volunteer@gpu1.service")
"""The one without a name, the template, and the file of one instance."""


def unit_of(kind: Kind, name: str, folder: Path) -> Path:
    """Write a unit that runs a program that certainly exists, since systemd looks for it."""
    carried = re.sub("@.*[.]", "@.", name)
    unit = folder / name
    text = packaging_data.text(FILES[kind].replace("volunteer.service", carried))
    unit.write_text(text.replace(COMMANDS[kind], sys.executable))
    return unit


def analyze(*arguments: str, runtime: Path) -> subprocess.CompletedProcess[str]:
    variables = {"XDG_RUNTIME_DIR": str(runtime), "SYSTEMD_LOG_LEVEL": "warning"}
    return apart("systemd-analyze", *arguments, **variables)


@needs_systemd
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("kind", "gpu"), [("system", False), ("system", True), ("user", False)])
def test_systemd_has_nothing_to_say_to_a_unit(
    kind: Kind, gpu: bool, name: str, tmp_path: Path
) -> None:
    unit = unit_of(kind, name, tmp_path)
    scope = ["--user"] if kind == "user" else []
    if gpu:
        drop_in = tmp_path / f"{name}.d" / "gpu.conf"
        drop_in.parent.mkdir()
        drop_in.write_text(packaging_data.text("system/gpu.conf"))
    verdict = analyze("verify", *scope, "--man=no", str(unit), runtime=tmp_path)
    assert (verdict.returncode, verdict.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("name", ["volunteer.service", "volunteer@gpu1.service"])
def test_the_system_service_is_hardened(name: str, tmp_path: Path) -> None:
    unit = unit_of("system", name, tmp_path)
    verdict = analyze(
        "security", "--offline=true", "--no-pager", str(unit), runtime=tmp_path
    ).stdout
    found = re.search(r"Overall exposure level for volunteer\S*.service: ([0-9.]+)", verdict)
    assert found is not None, verdict
    assert float(found[1]) <= EXPOSURE_AT_MOST


@pytest.mark.parametrize("kind", UNITS)
def test_a_unit_runs_the_command_given_and_nothing_else(kind: Kind) -> None:
    for command in ("/usr/bin/volunteer", "/home/a b/100%/bin/volunteer"):
        unit = service_file(kind, PurePosixPath(command))
        assert COMMANDS[kind] not in unit
        (line,) = re.findall(r"(?m)^ExecStart=(.*)$", unit)
        assert shlex.split(line)[0].replace("%%", "%") == command


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("command", ["volunteer", "/bin/a\nExecStartPre=/bin/b", "./x"])
def test_a_command_that_is_no_absolute_path_is_refused(kind: Kind, command: str) -> None:
    with pytest.raises(ValueError, match="not the absolute path"):
        service_file(kind, PurePosixPath(command))


@pytest.mark.parametrize("command", ["/opt/x/volunteer", "/Users/o'neil & co/bin/volunteer"])
def test_the_launchd_agent_runs_the_command_given(command: str) -> None:
    agent = plistlib.loads(service_file("launchd", PurePosixPath(command)).encode())
    shell, flag, script = agent["ProgramArguments"]
    assert (shell, flag) == ("/bin/sh", "-c")
    words = shlex.split(script)
    assert words[words.index("exec") + 1] == command
    assert agent["KeepAlive"] == {"SuccessfulExit": False}


@pytest.mark.parametrize("kind", UNITS)
def test_the_template_differs_from_the_unit_by_the_name_of_the_instance_alone(kind: Kind) -> None:
    """So whatever hardens the one hardens the other."""
    template = packaging_data.text(FILES[kind].replace("volunteer.service", "volunteer@.service"))
    without = template.replace(".", "/").replace("-%i", "").replace(" %i", "").replace("%i/", "")
    home = "Environment=VOLUNTEER_HOME="
    lines = {line for line in without.splitlines() if not line.startswith((home, "#"))}
    one = packaging_data.text(FILES[kind]).replace(".", "/").splitlines()
    assert lines == {line for line in one if not line.startswith((home, "#"))}


@pytest.mark.parametrize("name", ["systemd/system", "systemd/user", "launchd"])
def test_packaging_shows_the_files_that_the_wheel_carries(name: str) -> None:
    shown = ROOT / "packaging" / name
    assert shown.is_symlink()
    assert shown.resolve() == ROOT / "client" / "packaging_data" / PurePosixPath(name).name
