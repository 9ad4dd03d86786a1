"""Several services of one machine: each has its own files, and removing one leaves the others."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from client.cli.commands import service
from client.cli.main import run
from client.cli.reach import services
from client.cli.reach.services import installed_services, service_place
from client.errors import ExitCode, UserError
from client.packaging_data import INSTANCE_CHARS, is_instance
from client.store.paths import MAX_SOCKET_PATH_BYTES, SOCKET_NAME_BYTES, runtime_folder

PEER = "12D3KooWQVJeEspFqUfxUYGgL7GTpevs1mT5aLgaFYv7TSjBuRer"


def an_invite(swarm: str) -> str:
    return f"volunteer:{swarm * 32}?peer=/ip4/127.0.0.1/tcp/1/p2p/{PEER}"


class Machine:
    """Folders in place of the machine's, and a systemctl that notes what it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told = folder / "told"
        self.system_units = folder / "systemd"
        self.settings = folder / "etc"
        programs = folder / "bin"
        programs.mkdir()
        for name in ("systemctl", "systemd-sysusers", "volunteer"):
            program = programs / name
            program.write_text(f'#!/bin/sh\necho {name} "$@" >>"{self.told}"\n')
            program.chmod(0o755)

    def commands(self) -> list[str]:
        """What was run since the last call, but for reloads."""
        lines = self.told.read_text().splitlines() if self.told.exists() else []
        self.told.unlink(missing_ok=True)
        return [line for line in lines if "daemon-reload" not in line]

    def invite(self, swarm: str) -> str:
        path = self.folder / f"{swarm}.txt"
        path.write_text(an_invite(swarm))
        return str(path)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(services, "SYSTEM_UNITS", made.system_units)
    monkeypatch.setattr(services, "SYSTEM_SETTINGS", made.settings)
    monkeypatch.setattr(services, "SYSTEM_HOME", tmp_path / "var" / "volunteer")
    monkeypatch.setattr(service, "SYSUSERS_FILE", tmp_path / "sysusers.d" / "volunteer.conf")
    monkeypatch.setattr(service, "_check_visible", lambda command: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return made


@pytest.mark.parametrize("scope", ["--system", "--user"])
def test_two_instances_and_the_one_without_a_name_live_side_by_side(
    machine: Machine, scope: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, swarm in (("", "aa"), ("one", "bb"), ("two", "cc")):
        flags = ["--instance", name] if name else []
        assert run(["service", "install", scope, *flags, "--swarm", machine.invite(swarm)]) == 0
    where = "system" if scope == "--system" else "user"
    places = installed_services(where)  # type: ignore[arg-type]
    assert [place.instance for place in places] == ["", "one", "two"]
    assert len({place.home for place in places}) == 3
    for place, swarm in zip(places, ("aa", "bb", "cc"), strict=True):
        assert place.invite.read_text() == an_invite(swarm)
        assert place.invite.stat().st_mode & 0o777 == 0o600

    assert run(["service", "uninstall", scope, "--instance", "one"]) == 0
    assert [place.instance for place in installed_services(where)] == ["", "two"]  # type: ignore[arg-type]
    assert "still installed: the one without a name, two" in capsys.readouterr().err
    assert places[1].invite.exists(), "what was given stays"
    assert run(["service", "uninstall", scope]) == 0
    assert [place.instance for place in installed_services(where)] == ["two"]  # type: ignore[arg-type]


def test_the_manager_hears_the_name_of_the_instance(machine: Machine) -> None:
    install = ["service", "install", "--system", "--instance", "gpu1", "--start"]
    assert run([*install, "--swarm", machine.invite("aa")]) == 0
    assert "systemctl enable --now volunteer@gpu1.service" in machine.commands()
    place = service_place("system", "gpu1")
    assert place.commands["stop it"] == "systemctl stop volunteer@gpu1.service"
    assert place.commands["read its log"] == "journalctl -u volunteer@gpu1.service -f"
    assert run(["service", "uninstall", "--system", "--instance", "gpu1"]) == 0
    assert machine.commands() == ["systemctl disable --now volunteer@gpu1.service"]


def test_a_second_swarm_does_not_replace_the_first(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    install = ["service", "install", "--system", "--swarm"]
    assert run([*install, machine.invite("aa")]) == 0
    assert run([*install, machine.invite("bb")]) == ExitCode.USAGE
    assert "add --instance NAME to have both" in capsys.readouterr().err
    assert (machine.settings / "swarm").read_text() == an_invite("aa")
    assert run([*install, machine.invite("aa")]) == 0, "a fresh invite of the same swarm is fine"


def test_a_graphics_card_is_a_variable_and_a_drop_in_of_its_instance(machine: Machine) -> None:
    environment = machine.settings / "gpu1.environment"
    machine.settings.mkdir()
    environment.write_text("# mine\nVOLUNTEER_THREADS=4\nVOLUNTEER_DEVICE=cuda:7\n")
    install = ["service", "install", "--system", "--instance", "gpu1"]
    assert run([*install, "--device", "cuda:1"]) == 0
    assert environment.read_text().splitlines() == [
        "# mine", "VOLUNTEER_THREADS=4", "VOLUNTEER_DEVICE=cuda:1", "CUDA_DEVICE_ORDER=PCI_BUS_ID"
    ]  # fmt: skip
    drop_in = machine.system_units / "volunteer@gpu1.service.d" / "gpu.conf"
    assert "PrivateDevices=no" in drop_in.read_text()
    assert run([*install, "--device", "0,2"]) == 0
    assert environment.read_text().splitlines()[2:] == [
        "VOLUNTEER_DEVICE=cuda:0,cuda:2", "CUDA_DEVICE_ORDER=PCI_BUS_ID"
    ]  # fmt: skip
    assert run([*install, "--device", "cpu"]) == 0
    assert environment.read_text().splitlines()[2:] == ["VOLUNTEER_DEVICE=cpu"]
    assert run(["service", "uninstall", "--system", "--instance", "gpu1"]) == 0
    assert not drop_in.parent.exists()
    for wrong in (["--device", "cuda:-1"], ["--device", "tpu"]):
        assert run([*install, *wrong]) in (ExitCode.USAGE, ExitCode.CONFIG)


@pytest.mark.parametrize("name", ["Gpu", "a/b", "..", "-a", "a b", "a" * (INSTANCE_CHARS + 1), "é"])
def test_a_name_that_no_file_or_unit_can_have_is_refused(name: str) -> None:
    assert not is_instance(name)
    with pytest.raises(UserError, match="cannot be a name"):
        service_place("system", name)


def test_the_socket_of_the_longest_instance_fits_into_its_home() -> None:
    place = service_place("system", "a" * INSTANCE_CHARS)
    assert place.home is not None
    runtime = runtime_folder(place.home)
    assert runtime.is_relative_to(place.home)
    assert len(str(runtime)) + 1 + SOCKET_NAME_BYTES <= MAX_SOCKET_PATH_BYTES


@pytest.mark.parametrize("scope", ["system", "user"])
def test_the_unit_of_an_instance_says_what_the_command_line_expects(
    machine: Machine, scope: str
) -> None:
    """The paths stand in the unit and in the program; they must be the same."""
    assert run(["service", "install", f"--{scope}", "--instance", "one"]) == 0
    place = service_place(scope, "one")  # type: ignore[arg-type]
    home = Path(os.environ["HOME"])
    unit = place.unit.read_text().replace("%i", "one").replace("%h", str(home))
    unit = unit.replace("%E", str(home / ".config"))
    variables = dict(re.findall(r"(?m)^Environment=(\w+)=(.*)$", unit))
    files = re.findall(r"(?m)^EnvironmentFile=-(.*)$", unit)
    invite = re.search(r"(?m)^AssertPathExists=(.*)$", unit)
    assert invite is not None
    if scope == "system":  # the machine's folders, which the fixture has replaced
        assert variables["VOLUNTEER_HOME"] == "/var/lib/volunteer-one"
        assert (invite[1], files) == (
            "/etc/volunteer/one.swarm",
            ["/etc/volunteer/one.environment"],
        )
        assert place.home is not None
        assert place.home.name == "volunteer-one"
    else:
        assert variables["VOLUNTEER_HOME"] == str(place.home)
        assert (invite[1], files) == (str(place.invite), [str(place.environment)])
    assert place.invite.name == "one.swarm"


def test_a_dry_run_says_what_an_installation_does_and_does_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    flags = ["--system", "--device", "cuda:1", "--swarm", machine.invite("aa"), "--start"]
    before = sorted(machine.folder.rglob("*"))
    assert run(["service", "install", *flags, "--dry-run"]) == 0
    assert sorted(machine.folder.rglob("*")) == before
    assert machine.commands() == []
    told = capsys.readouterr()
    assert "[Unit]" in told.out
    place = service_place("system", "")
    for words in (
        place.invite,
        place.unit,
        place.drop_in,
        "VOLUNTEER_DEVICE=cuda:1",
        place.commands["start it"],
    ):
        assert f"{words}" in told.err
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert run(["service", "install", *flags]) == 0
    assert place.unit.read_text() == told.out
    assert place.invite.exists()
