"""The service files that the wheel carries: what systemd and launchd say to them."""

import plistlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli_process import apart

PACKAGING = Path(__file__).parents[2] / "packaging"
UNITS = {"system": "/opt/volunteer/bin/volunteer", "user": "%h/.local/bin/volunteer"}
"""Where the command is in the units of each folder."""
EXPOSURE_AT_MOST = 3.0
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
NAMES = ("volunteer.service", "volunteer@.service", "volunteer@gpu1.service")
"""The one without a name, the template, and the file of one instance."""


def unit_of(kind: str, name: str, folder: Path) -> Path:
    """Write a unit that runs a program that certainly exists, since systemd looks for it."""
    carried = re.sub("@.*[.]", "@.", name)
    unit = folder / name
    unit.write_text(text_of(kind, carried).replace(UNITS[kind], sys.executable))
    return unit


def text_of(kind: str, name: str) -> str:
    return (PACKAGING / "systemd" / kind / name).read_text()


def analyze(*arguments: str, runtime: Path) -> subprocess.CompletedProcess[str]:
    variables = {"XDG_RUNTIME_DIR": str(runtime), "SYSTEMD_LOG_LEVEL": "warning"}
    return apart("systemd-analyze", *arguments, **variables)


@needs_systemd
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("kind", "gpu"), [("system", False), ("system", True), ("user", False)])
def test_systemd_has_nothing_to_say_to_a_unit(
    kind: str, gpu: bool, name: str, tmp_path: Path
) -> None:
    unit = unit_of(kind, name, tmp_path)
    scope = ["--user"] if kind == "user" else []
    if gpu:
        drop_in = tmp_path / f"{name}.d" / "gpu.conf"
        drop_in.parent.mkdir()
        drop_in.write_text(text_of("system", "gpu.conf"))
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


def test_the_launchd_agent_runs_the_command_and_nothing_else() -> None:
    agent = plistlib.loads((PACKAGING / "launchd" / "org.volunteer.client.plist").read_bytes())
    shell, flag, script = agent["ProgramArguments"]
    assert (shell, flag) == ("/bin/sh", "-c")
    words = shlex.split(script)
    assert words[words.index("exec") + 1] == "$HOME/.local/bin/volunteer"
    assert agent["KeepAlive"] == {"SuccessfulExit": False}


@pytest.mark.parametrize("kind", UNITS)
def test_the_template_differs_from_the_unit_by_the_name_of_the_instance_alone(kind: str) -> None:
    """So whatever hardens the one hardens the other."""
    template = text_of(kind, "volunteer@.service")
    without = template.replace(".", "/").replace("-%i", "").replace(" %i", "").replace("%i/", "")
    home = "Environment=VOLUNTEER_HOME="
    lines = {line for line in without.splitlines() if not line.startswith((home, "#"))}
    one = text_of(kind, "volunteer.service").replace(".", "/").splitlines()
    assert lines == {line for line in one if not line.startswith((home, "#"))}
