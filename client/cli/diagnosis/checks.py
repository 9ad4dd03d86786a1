"""The checks of ``volunteer doctor``: each examines one thing and says what to do about it.

A check changes nothing that a first ``join`` would not create, and never raises.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil
from msgspec import Struct

from client.config import EVERYWHERE
from client.control.sockets import SocketFolderError, prepare_folder
from client.store.paths import create_folders
from client.store.rest_files import kept_files
from client.store.rest_key import FILE_NAME as KEY_NAME
from client.store.rest_key import has_key

Status = Literal["ok", "warn", "fail"]
EXACT_VERSIONS = {"libp2p": "0.8.1"}
"""Packages whose faults client/net mends for exactly this version."""
MIN_FREE_DISK_BYTES = 2 * 10**9
MIN_FREE_MEMORY_BYTES = 10**9
IMPORT_TIMEOUT_S = 120.0


class Check(Struct, frozen=True):
    """Outcome of one check."""

    name: str
    status: Status
    words: str
    next_step: str = ""


def check_python() -> Check:
    """The version of Python; one older than 3.11 could not have loaded this file."""
    return Check("python", "ok", ".".join(map(str, sys.version_info[:3])))


def check_package(name: str) -> Check:
    """A package is installed, in the required version where that matters."""
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, "fail", "not installed", f"pip install {name}")
    wanted = EXACT_VERSIONS.get(name, found)
    if found != wanted:
        return Check(name, "fail", f"{found}, needs {wanted}", f"pip install {name}=={wanted}")
    return Check(name, "ok", found)


def check_import(name: str) -> Check:
    """A heavy package really loads; in a process of its own, as it will be used."""
    command = [sys.executable, "-c", f"import {name}"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=IMPORT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return Check(
            f"import {name}", "fail", "takes too long", "check that the disk works; it is very slow"
        )
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return Check(f"import {name}", "fail", " ".join(last), f"reinstall {name}")
    return Check(f"import {name}", "ok", "loads")


def check_kernel() -> Check:
    """Check the quantiser for the wire: the C kernel, if it was built."""
    from client.compute.native import KERNEL, VARIANTS

    if VARIANTS:
        return Check("S8 kernel", "ok", KERNEL)
    remedy = "install a C compiler and Python's headers, then reinstall this package"
    return Check("S8 kernel", "warn", "not built; torch does its work, more slowly", remedy)


def check_folder(name: str, folder: Path) -> Check:
    """A folder of ours can be written and has room for checkpoints."""
    try:
        create_folders(folder)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        words = f"{folder}: {error.strerror}"
        return Check(name, "fail", words, "choose another with VOLUNTEER_HOME")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check(name, "fail", f"{folder} is not writable", f"chown or chmod {folder}")
    words = f"{folder}, {free / 1e9:.1f} GB free"
    if free < MIN_FREE_DISK_BYTES:
        return Check(
            name,
            "warn",
            words,
            "free space: a checkpoint needs 12 bytes per parameter, 16 with delayed updates",
        )
    return Check(name, "ok", words)


def check_runtime_folder(folder: Path) -> Check:
    """The control socket can be made where only this user may connect."""
    try:
        prepare_folder(folder)
    except SocketFolderError as error:
        return Check(
            "control socket", "fail", str(error), "set XDG_RUNTIME_DIR to a folder of yours"
        )
    return Check("control socket", "ok", str(folder))


def check_identity(path: Path) -> Check:
    """The private key, if there is one, is readable by its owner alone."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return Check("identity", "ok", "none yet; the first join creates one")
    except OSError as error:
        return Check("identity", "fail", f"{path}: {error.strerror}", "fix the permissions")
    if stat.S_IMODE(mode) & 0o077:
        return Check("identity", "fail", f"others can read {path}", f"chmod 600 {path}")
    return Check("identity", "ok", str(path))


def check_at_rest(data: Path) -> Check:
    """The files of text and weights are of the kind that the owner asked for."""
    try:
        plain = kept_files(data, encrypted=False)
        encrypted = len(kept_files(data, encrypted=True))
    except OSError as error:
        return Check("at rest", "fail", f"{error.filename}: {error.strerror}", "make it readable")
    if has_key(data):
        words = f"{encrypted} files of text and weights are encrypted"
        if plain:
            words = f"{len(plain)} files of text and weights are not encrypted, such as {plain[0]}"
            return Check("at rest", "warn", words, "stop the volunteer and run: volunteer encrypt")
        return Check("at rest", "ok", words)
    if encrypted:
        words = f"{encrypted} files are encrypted, and their key {data / KEY_NAME} is missing"
        return Check("at rest", "fail", words, "restore it from a backup, or move the files away")
    return Check("at rest", "ok", "not encrypted; volunteer encrypt does it")


def check_memory() -> Check:
    """There is memory for a worker."""
    free = psutil.virtual_memory().available
    words = f"{free / 1e9:.1f} GB free"
    if free < MIN_FREE_MEMORY_BYTES:
        return Check("memory", "warn", words, "close programs, or join a swarm with small stages")
    return Check("memory", "ok", words)


def check_port(host: str, port: int) -> Check:
    """The port for other volunteers is free; 0 means any port."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("0.0.0.0" if host == EVERYWHERE else host, port))
    except OSError as error:
        words = f"{host}:{port}: {error.strerror}"
        return Check(
            "port",
            "warn",
            words,
            "stop the volunteer or program that uses it, or choose another listen_port",
        )
    return Check("port", "ok", f"{host}:{port} is free" if port else "any")
