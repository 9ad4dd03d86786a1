"""Each thing that can be broken is provoked, and doctor's line names the cause and what to do."""

import errno
import json
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from client.cli.commands import doctor
from client.cli.diagnosis import checks, checks_gpu, checks_outside
from client.cli.diagnosis.checks import Check
from client.cli.diagnosis.checks_gpu import check_gpu
from client.cli.reach.home import home_with_faults
from client.cli.reach.target import read_target
from client.config import Settings
from client.control.sockets import socket_path
from client.errors import UserError
from client.limits.cores import control_groups
from client.store.checkpoints import CheckpointFolder
from client.store.identity import KEY_FILE, ensure_identity
from client.store.last_run import RunRecord
from client.store.lock import identity_lock
from client.store.paths import home_folders, make_private
from client.store.swarms import SwarmStore
from protocol.address import Address
from protocol.invite import SwarmFile
from tests.support.cli_process import LOCK, apart, living
from tests.support.saved_swarms import SIGNER, WORDS, little_swarm

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def swarm_of(folder: Path) -> SwarmFile:
    """A swarm that trains on a text in a folder."""
    (text := folder / "text").write_text(WORDS)
    return little_swarm(text)


@dataclass
class Scene:
    """A sound home, which a case breaks; ``exit`` mends it."""

    home: Path
    patch: pytest.MonkeyPatch
    exit: ExitStack

    @property
    def data(self) -> Path:
        return home_folders(self.home).data

    def remember(self, *peers: Address) -> None:
        """Know a swarm with these members."""
        swarm = replace(swarm_of(self.home), peers=peers)
        SwarmStore(home_folders(self.home).swarms).remember(swarm)

    def run(self) -> None:
        """Be the volunteer of this home."""
        self.exit.enter_context(identity_lock(self.data))
        RunRecord(self.data).begin("ab" * 32, "little")

    def set(self, line: str) -> None:
        (self.home / "config.toml").write_text(line + "\n")


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="vol") as name, ExitStack() as stack:
        home = Path(name) / "h"
        for variable in [key for key in os.environ if key.startswith("VOLUNTEER_")]:
            monkeypatch.delenv(variable)
        monkeypatch.setenv("HOME", name)
        monkeypatch.setenv("VOLUNTEER_HOME", str(home))
        monkeypatch.setattr("client.cli.reach.home.SYSTEM_CONFIG_FILE", home / "system.toml")
        monkeypatch.setattr(doctor, "HEAVY", ())  # their cases ask for themselves
        scene = Scene(home, monkeypatch, stack)
        ensure_identity(make_private(scene.data))
        yield scene


def examined() -> list[Check]:
    return list(doctor.examine(*home_with_faults()))


def test_nothing_is_wrong_with_a_sound_home(scene: Scene) -> None:
    assert [check for check in examined() if check.status == "fail"] == []


Break = Callable[[Scene], object]
CASES: dict[str, tuple[Break, str, str, str, str]] = {}
"""By name: what breaks it; the name, status and words of doctor's line, and what to do."""


def case(name: str, status: str, words: str, step: str) -> Callable[[Break], Break]:
    def register(broken: Break) -> Break:
        CASES[broken.__name__] = (broken, name, status, words, step)
        return broken

    return register


# --- the home ------------------------------------------------------------------------------------


@case("identity", "fail", "others can read the identity", "chmod 600 .*identity.key")
def key_that_others_can_read(scene: Scene) -> None:
    (scene.data / KEY_FILE).chmod(0o644)


@case("lock", "fail", r"process \d+ uses this identity", r"kill \d+")
def lock_held_by_another_process(scene: Scene) -> None:
    scene.exit.enter_context(living(LOCK, str(scene.data)))


@case("swarm files", "fail", "is damaged, so its swarm counts as unknown", "rm .*join again")
def damaged_swarm(scene: Scene) -> None:
    scene.remember()
    (file,) = home_folders(scene.home).swarms.glob("*.swarm")
    file.write_bytes(file.read_bytes()[:100])


@case("swarm files", "fail", "is of another version.*unknown field `zeal`", "keep the file")
def swarm_of_a_newer_version(scene: Scene) -> None:
    folder = home_folders(scene.home).swarms
    folder.mkdir()
    (folder / f"{'ab' * 32}.swarm").write_text(of_a_newer_version(scene.home))


def of_a_newer_version(folder: Path) -> str:
    """A .swarm file whose manifest has one field more; nobody comes to check its signature."""
    document = json.loads(str(swarm_of(folder)))
    document["manifest"] = document["manifest"][:-1] + ',"zeal":1}'
    return json.dumps(document)


def test_a_swarm_of_a_newer_version_asks_for_an_upgrade(scene: Scene) -> None:
    file = scene.home / "x.swarm"
    file.write_text(of_a_newer_version(scene.home))
    with pytest.raises(UserError, match="unknown field `zeal`") as raised:
        read_target(str(file))
    assert "that its members run" in raised.value.next_step


@case("checkpoints", "warn", "1 checkpoint damaged and not used,", "members replace")
def checkpoint_with_a_damaged_header(scene: Scene) -> None:
    folder = scene.data / "checkpoints" / ("ab" * 32)
    folder.mkdir(parents=True)
    (folder / "stage-0-v7.safetensors").write_bytes(b"weights" * 100)


@case("swarm files", "fail", "Is a directory", "move it away")
def folder_in_the_place_of_a_swarm(scene: Scene) -> None:
    (home_folders(scene.home).swarms / f"{'ab' * 32}.swarm").mkdir(parents=True)


@case("checkpoints", "fail", "checkpoints/x: Input/output error", "check the disk")
def checkpoints_that_the_disk_does_not_give(scene: Scene) -> None:
    def broken(_: CheckpointFolder) -> None:
        raise OSError(errno.EIO, "Input/output error")

    (scene.data / "checkpoints" / "x").mkdir(parents=True)
    scene.patch.setattr(CheckpointFolder, "entries", broken)


@case("settings", "fail", "threads in .*config.toml: it must be a whole number", "correct")
def faulty_setting(scene: Scene) -> None:
    scene.set("threads = 'many'")


@case(
    "settings",
    "warn",
    "unknown setting 'thread' in .* has no effect: did you mean threads",
    "remove or",
)
def unknown_setting(scene: Scene) -> None:
    scene.set("thread = 2")


@case("data folder", "warn", "GB free", "checkpoints of a stage take up to 3.00 MB")
def disk_too_small_for_what_is_kept(scene: Scene) -> None:
    scene.remember()
    scene.patch.setattr(doctor, "data_bytes", lambda run, stage: 10**6)
    scene.patch.setattr(checks, "MIN_FREE_DISK_BYTES", 0)
    scene.patch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=2_900_000))


@case("control socket", "fail", "other users can enter", "chmod 700")
def open_folder_of_sockets(scene: Scene) -> None:
    folder = home_folders(scene.home).runtime
    folder.mkdir()
    folder.chmod(0o755)


@case("control socket", "ok", "is left from a volunteer that was killed", "the next start")
def stale_socket(scene: Scene) -> None:
    path = socket_path(home_folders(scene.home).runtime, "ab" * 32, SIGNER.peer)
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


@case("volunteer", "fail", "one runs, but: .* does not answer", "volunteer logs")
def hung_volunteer(scene: Scene) -> None:
    path = socket_path(home_folders(scene.home).runtime, "ab" * 32, SIGNER.peer)
    path.parent.mkdir(mode=0o700)
    hung = scene.exit.enter_context(socket.socket(socket.AF_UNIX))
    hung.bind(str(path))
    hung.listen(16)


@case("volunteer", "warn", "none runs now; .*the disk is full", "free space")
def volunteer_that_failed(scene: Scene) -> None:
    record = RunRecord(scene.data)
    record.begin("ab" * 32, "little")
    record.end("the disk is full", "free space", 1)


# --- the network ---------------------------------------------------------------------------------


@case("port", "fail", "in use by process OURS", "listen_port \\d+")
def port_in_use(scene: Scene) -> None:
    taken = scene.exit.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = taken.getsockname()[1]
    scene.set(f'listen_host = "127.0.0.1"\nlisten_port = {port}')


@case("port", "ok", "in use by the volunteer of this home", "")
def port_of_the_volunteer_itself(scene: Scene) -> None:
    port_in_use(scene)
    scene.run()


@case("port", "fail", "not an address of this machine", "listen_host all")
def address_of_another_machine(scene: Scene) -> None:
    scene.set('listen_host = "203.0.113.9"\nlisten_port = 4001')


@case("swarm little", "warn", r"0 of 1 remembered members answer: 127.0.0.1:\d+", "fresh invite")
def members_that_are_gone(scene: Scene) -> None:
    bound = scene.exit.enter_context(socket.socket())
    bound.bind(("127.0.0.1", 0))
    scene.remember(Address("ip4", "127.0.0.1", bound.getsockname()[1], SIGNER.peer))


@case("swarm little", "ok", "1 of 1 remembered members answer$", "")
def members_that_answer(scene: Scene) -> None:
    listening = scene.exit.enter_context(socket.create_server(("127.0.0.1", 0)))
    scene.remember(Address("ip4", "127.0.0.1", listening.getsockname()[1], SIGNER.peer))


# --- the machine ---------------------------------------------------------------------------------


@case("memory", "warn", "0.2 GB, which is all that its control group may use", "raise the limit")
def control_group_without_memory(scene: Scene) -> None:
    group = scene.home / "cgroup" / "box"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text("200000000\n")
    (scene.home / "own").write_text("0::/box\n")
    groups = list(control_groups(scene.home / "own", group.parent))
    scene.patch.setattr(checks, "control_groups", lambda: groups)


@case("open files", "warn", "128 at most", "ulimit -n")
def few_descriptors(scene: Scene) -> None:
    scene.patch.setattr(checks_outside.resource, "getrlimit", lambda _: (128, 4096))


@case("open files", "ok", "enough", "")
def descriptors_without_end(scene: Scene) -> None:
    endless = checks_outside.resource.RLIM_INFINITY
    scene.patch.setattr(checks_outside.resource, "getrlimit", lambda _: (endless, endless))


@case("reachability", "warn", "192.168.1.5 is a private address", "forward a port")
def private_address(scene: Scene) -> None:
    scene.patch.setattr(checks_outside, "own_hosts", lambda host: ["192.168.1.5"])


# --- the program ---------------------------------------------------------------------------------


@case("import torch", "fail", "libcudart.so.12: cannot open", "reinstall torch")
def torch_that_does_not_load(scene: Scene) -> None:
    package = scene.home / "packages" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('libcudart.so.12: cannot open')\n")
    scene.patch.setenv("PYTHONPATH", str(package.parent))
    scene.patch.setattr(doctor, "HEAVY", ("torch",))


@case("torch-of-nobody", "fail", "not installed", "pip install torch-of-nobody")
def missing_package(scene: Scene) -> None:
    scene.patch.setattr(doctor, "PACKAGES", ("torch-of-nobody",))


@case("gpu", "fail", "device is cuda:1, but NVIDIA's driver finds no card", "set device cpu")
def device_without_a_card(scene: Scene) -> None:
    scene.patch.setattr(checks_gpu, "_cards", list)
    scene.set('device = "cuda:1"')


@pytest.mark.parametrize("name", CASES)
def test_what_is_broken_is_named_with_what_to_do(name: str, scene: Scene) -> None:
    broken, line, status, words, step = CASES[name]
    broken(scene)
    checked = examined()
    assert {check.name for check in checked if check.status == "fail"} <= {line}
    found = [check for check in checked if check.name == line]
    assert [check.status for check in found] == [status], found
    assert re.search(words.replace("OURS", str(os.getpid())), found[0].words), found
    assert re.search(step, found[0].next_step), found
    assert "\n" not in found[0].words


# --- what needs a process, a user or a mount of its own ------------------------------------------


def run_apart(program: str, *wrapper: str) -> str:
    """Run a program of Python in a process of its own; return what it prints."""
    done = apart(*wrapper, sys.executable, "-c", program)
    if wrapper and "Operation not permitted" in done.stderr:
        pytest.skip("no namespaces here")
    assert done.returncode == 0, done.stderr
    return done.stdout


FOLDER = "from pathlib import Path; from client.cli.diagnosis.checks import check_folder as c; "


@needs_root
@pytest.mark.parametrize(
    ("option", "words", "step"),
    [
        ("size=64k", "No space left on device", "volunteer cache --prune"),
        ("ro", "Read-only file system", "mount it for writing"),
    ],
)
def test_a_disk_that_is_full_or_cannot_be_written_is_named(
    scene: Scene, option: str, words: str, step: str
) -> None:
    disk = scene.home / "disk"
    disk.mkdir()
    fill = f"mount -t tmpfs -o {option} none {disk}; head -c 70000 /dev/zero >{disk}/x; exec $0 "
    program = f"{FOLDER}print(c('data folder', Path('{disk}')))"
    told = run_apart(program, "unshare", "-m", "sh", "-c", f'{fill} "$@"')
    for expected in ("status='fail'", words, step):
        assert expected in told


@needs_root
def test_a_folder_of_another_user_is_named(scene: Scene) -> None:
    scene.home.parent.chmod(0o755)
    scene.home.chmod(0o755)
    become = "import os; os.setgroups([]), os.setgid(65534), os.setuid(65534); "
    told = run_apart(f"{FOLDER}{become}print(c('data folder', Path('{scene.data}')))")
    assert "Permission denied" in told
    assert "chown, chmod" in told


def test_a_file_in_the_way_of_the_folder_is_named(scene: Scene) -> None:
    (scene.home / "file").touch()
    told = checks.check_folder("data folder", scene.home / "file" / "data")
    assert (told.status, "Not a directory" in told.words) == ("fail", True)
    assert "a file is in the way" in told.next_step
    assert checks.check_folder("data folder", scene.home / "new" / "data").status != "fail"


@needs_root
def test_a_machine_without_a_network_is_named(scene: Scene) -> None:
    program = (
        "from client.cli.diagnosis.checks_outside import check_reachability\n"
        "from client.config import Settings\nprint(check_reachability(Settings()))"
    )
    told = run_apart(program, "unshare", "-n")
    assert "status='fail'" in told
    assert "connect this machine to a network" in told


# --- graphics cards ------------------------------------------------------------------------------


class FakeDriver:
    """``pynvml`` of a machine with two cards."""

    NVMLError = RuntimeError

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Callable[..., Any]] = {
            "nvmlSystemGetDriverVersion": lambda: b"550.1",
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda number: number,
            "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(free=8e9),
            "nvmlDeviceGetName": lambda card: f"Card {card}",
        }
        return answers.get(name, lambda: None)


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeDriver())
    monkeypatch.setattr(checks_gpu, "package_version", lambda _: "2.13.0+cu126")
    monkeypatch.delenv(checks_gpu.VISIBLE, raising=False)


def test_doctor_advises_how_to_use_all_cards(cards: None) -> None:
    told = check_gpu(Settings(device="auto"))
    assert told.words.startswith("0: Card 0, 8.00 GB free, driver 550.1; 1: Card 1, ")
    assert (told.status, "--device cuda:1" in told.next_step) == ("ok", True)
    assert "config set device 0,1" in told.next_step


def test_doctor_names_a_card_that_is_not_there_and_a_torch_without_cuda(
    cards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = check_gpu(Settings(device="cuda:2"))
    assert (told.status, "set device cuda:1" in told.next_step) == ("fail", True)
    told = check_gpu(Settings(device="cuda:0,cuda:3"))
    assert (told.status, "there is no cuda:3" in told.words) == ("fail", True)
    monkeypatch.setenv(checks_gpu.VISIBLE, "1")
    told = check_gpu(Settings(device="cuda:2"))
    monkeypatch.delenv(checks_gpu.VISIBLE)
    assert "CUDA_VISIBLE_DEVICES=1 renumbers them" in told.words
    monkeypatch.setattr(checks_gpu, "package_version", lambda _: "2.13.0+cpu")
    assert "build of torch cannot use them" in check_gpu(Settings()).words


def test_the_lock_of_the_volunteer_itself_is_no_trouble(scene: Scene) -> None:
    scene.run()
    assert [check for check in examined() if check.name == "lock"] == []


def test_gpus_that_are_not_nvidias_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_gpu, "_cards", list)
    monkeypatch.setattr(checks_gpu, "package_version", lambda _: "2.13.0+rocm6.4")
    told = check_gpu(Settings(device="cuda:1"))
    assert (told.status, "AMD" in told.words) == ("ok", True)
    monkeypatch.setattr(checks_gpu, "package_version", lambda _: "2.13.0")
    monkeypatch.setattr(checks_gpu.sys, "platform", "darwin")
    monkeypatch.setattr(checks_gpu.platform, "machine", lambda: "arm64")
    told = check_gpu(Settings(device="mps"))
    assert (told.status, "named mps" in told.words) == ("ok", True)
    monkeypatch.setattr(checks_gpu.platform, "machine", lambda: "x86_64")
    assert check_gpu(Settings(device="mps")).status == "fail"
    assert check_gpu(Settings(device="auto")).words.startswith("none found")
