"""Settings of a node: one frozen struct, and where each value came from.

Flags win over ``VOLUNTEER_*`` variables, those over the file of ``--config``, that over the
user's file, that over the administrator's, that over the defaults. Nothing else in the program
reads the environment for settings. A key that does not exist is an error that names the nearest
one that does.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_type_hints

import msgspec
from msgspec import Meta, Struct

from client.errors import ConfigError
from client.quantities import (
    parse_minutes,
    parse_percent,
    parse_rate,
    parse_size,
    parse_watts,
    spell_rate,
    spell_size,
)
from client.schedule import parse_schedule
from protocol.address import parse_address

ENVIRONMENT_PREFIX: Final = "VOLUNTEER_"
NOT_SETTINGS: Final = frozenset(
    {"HOME", "SWARM", "CONFIG", "DEBUG", "FAILPOINTS", "FAILPOINTS_LOG"}
)
"""Variables with the prefix that other parts of the program read."""
MAX_CONFIG_FILE_BYTES: Final = 256 * 1024

Port = Annotated[int, Meta(ge=0, le=65535)]
Size = Annotated[int, Meta(ge=0, le=2**50)]
"""Bytes; may be written like ``512MiB`` or ``10MB``."""
Rate = Annotated[int, Meta(ge=0, le=2**50)]
"""Bytes per second; may be written like ``2MB/s`` or ``20Mbit/s``."""
MIN_RATE_BYTES_PER_S: Final = 100_000
"""Slower than this, others give up waiting for what we send or take."""

MIB: Final = 2**20
GIB: Final = 2**30


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a user may choose about a node. 0 means: no limit, or chosen by the node."""

    listen_host: Annotated[str, Meta(max_length=64)] = "0.0.0.0"
    listen_port: Port = 0
    """0: any free port."""
    announce: Annotated[tuple[str, ...], Meta(max_length=8)] = ()
    """Addresses to advertise instead of those found: /ip4/203.0.113.7/tcp/4001 of a forward."""
    dial_timeout_s: Annotated[float, Meta(gt=0, le=600)] = 20.0
    """Longest wait for a first member of the swarm."""
    max_links: Annotated[int, Meta(ge=4, le=1024)] = 256
    """Connections at which no more are accepted."""
    upload_limit_bytes_per_s: Rate = 0
    download_limit_bytes_per_s: Rate = 0
    daily_quota_bytes: Size = 0
    """Sent and received in a day of the local clock; when it is used up, pause till midnight."""
    control_group: Annotated[str, Meta(max_length=64)] = ""
    """Members of this group may look at the node (status, events), too; for a system service."""
    data_dir: Annotated[str, Meta(max_length=4096)] = ""
    """Identity, swarms and checkpoints; empty: the system's place for them."""
    device: Annotated[str, Meta(max_length=32)] = "auto"
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Threads of the compute worker; 0: its share of the cores, with other volunteers beside it."""
    compute_share: Annotated[int, Meta(ge=1, le=100)] = 100
    """Percentage of the time that may be spent computing."""
    seats: Annotated[int, Meta(ge=0, le=4)] = 0
    """Stages to hold at most; 0: two where memory allows."""
    memory_limit_bytes: Size = 0
    """Memory of the compute worker; 0: 85 % of the machine's."""
    vram_share: Annotated[int, Meta(ge=1, le=100)] = 100
    """Percentage of the GPU's memory that may be used."""
    power_limit_w: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """Most power the GPU may draw, in watts; setting it takes the driver's permission."""
    only_when_idle: bool = False
    """Compute only while nobody uses this machine's keyboard and screen."""
    idle_after_minutes: Annotated[int, Meta(ge=1, le=1440)] = 5
    """Nobody uses it when nothing was touched for so long."""
    not_on_battery: bool = False
    """Compute only on mains power."""
    schedule: Annotated[str, Meta(max_length=1024)] = ""
    """Compute only then, by the local clock: 22:00-07:00 mon-fri; 00:00-24:00 sat,sun."""
    boundary_memory_bytes: Annotated[int, Meta(ge=MIB, le=2**50)] = 512 * MIB
    """Boundary tensors kept in memory; more go to disk."""
    boundary_disk_bytes: Size = 4 * GIB
    checkpoint_keep: Annotated[int, Meta(ge=1, le=1000)] = 2
    """Checkpoints kept per stage."""
    checkpoint_milestone_every: Annotated[int, Meta(ge=0, le=2**40)] = 0
    """Every version that is a multiple of it is kept for good; 0: none."""
    metrics_port: Port = 0
    """Port of the Prometheus metrics on loopback; 0: none."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"


FIELDS: Final = Settings.__struct_fields__


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings and the origin of each: a flag, a variable's name, a file's path, ``default``."""

    settings: Settings
    origins: Mapping[str, str]


def resolve(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config_file: Path | None = None,
    user_file: Path | None = None,
    system_file: Path | None = None,
) -> Resolved:
    """Merge all sources by precedence.

    Args:
        flags: values by field name; None means that the flag was not given.
        environ: environment variables.
        config_file: file of ``--config``; it must exist.
        user_file: the user's settings; it need not exist.
        system_file: the administrator's; it need not exist.

    Raises:
        ConfigError: an unknown key, a value of the wrong type or range, or an unreadable file.
    """
    values: dict[str, object] = {}
    origins = dict.fromkeys(FIELDS, "default")
    for name, value, origin in _layers(flags, environ, config_file, user_file, system_file):
        values[name] = _convert(name, value, origin)
        origins[name] = origin
    return Resolved(Settings(**values), origins)  # type: ignore[arg-type]


def check_setting(name: str, text: str | None) -> object:
    """Return the value that ``text`` means for a setting; None: only whether there is one.

    Raises:
        ConfigError: no such setting, or not a value for it.
    """
    _known(name, "the settings")
    if text is None:
        return None
    parts = [part for part in text.split(",") if part]
    return _convert(name, parts if name == "announce" else text, "given")


_TYPES = get_type_hints(Settings, include_extras=True)


def _layers(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config_file: Path | None,
    user_file: Path | None,
    system_file: Path | None,
) -> Iterator[tuple[str, object, str]]:
    """Yield (field, value, origin), weakest source first."""
    for file in (system_file, user_file):
        if file is not None and file.exists():
            yield from _from_file(file)
    if config_file is not None:
        yield from _from_file(config_file)
    yield from _from_environment(environ)
    for name, value in flags.items():
        if value is not None:
            yield _known(name, "a flag"), value, "flag"


def _from_file(path: Path) -> Iterator[tuple[str, object, str]]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_CONFIG_FILE_BYTES + 1)
        if len(text) > MAX_CONFIG_FILE_BYTES:
            raise ConfigError(f"{path} is too long for settings", "check --config")
        table = tomllib.loads(text.decode())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", "check --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", "mend the file") from error
    for key, value in table.items():
        yield _known(key, str(path)), value, str(path)


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, object, str]]:
    for variable, text in environ.items():
        suffix = variable.removeprefix(ENVIRONMENT_PREFIX)
        if suffix == variable or suffix in NOT_SETTINGS:
            continue
        name = _known(suffix.lower(), "the environment", ENVIRONMENT_PREFIX)
        value = [part for part in text.split(",") if part] if name == "announce" else text
        yield name, value, variable


def _known(key: str, where: str, prefix: str = "") -> str:
    if key in FIELDS:
        return key
    near = difflib.get_close_matches(key, FIELDS, n=1)
    spelled = [prefix + (name.upper() if prefix else name) for name in (key, *near)]
    hint = f"did you mean {spelled[1]}?" if near else "see volunteer config for all settings"
    raise ConfigError(f"unknown setting {spelled[0]!r} in {where}", hint)


def _convert(name: str, value: object, origin: str) -> object:
    try:
        if isinstance(value, str) and (parse := _parser(name)) is not None:
            value = parse(value)
        # variables are always text, so text may stand for a number
        converted = msgspec.convert(value, _TYPES[name], strict=not isinstance(value, str))
        return _checked(name, converted)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{name} ({origin}): {error}", f"correct {name}") from error


def _parser(name: str) -> Callable[[str], int] | None:
    """Return what reads a setting's amount with its unit."""
    for ending, parse in _PARSERS:
        if name.endswith(ending):
            return parse
    return None


def _checked(name: str, value: Any) -> object:
    """Return the value in its one spelling; raises ``ValueError``."""
    if name == "announce":
        return tuple(str(parse_address(text)) for text in value)
    if name == "schedule":
        return str(parse_schedule(value))
    if name == "device" and not _DEVICE.fullmatch(value):
        raise ValueError(
            f"{value!r} is no device; there are auto, cpu, cuda and cuda:0, cuda:1 ..."
        )
    if name.endswith("_bytes_per_s") and 0 < value < MIN_RATE_BYTES_PER_S:
        raise ValueError(f"at least {MIN_RATE_BYTES_PER_S} bytes/s, or 0 for no limit")
    return value


_DEVICE: Final = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")


def in_words(name: str, value: object) -> str:
    """Return a setting's value as people read it: amounts with their unit, and what 0 means.

    What has a unit is spelled as it may be set.
    """
    if value == 0 and not isinstance(value, bool) and name in ZERO_MEANS:
        return ZERO_MEANS[name]
    if isinstance(value, int) and not isinstance(value, bool):
        spell = next((spell for ending, spell in _SPELLERS if name.endswith(ending)), str)
        return spell(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "not set" if value == "" else msgspec.json.encode(value).decode().strip('"')


ZERO_MEANS: Final = {
    "listen_port": "any free port",
    "upload_limit_bytes_per_s": "no limit",
    "download_limit_bytes_per_s": "no limit",
    "daily_quota_bytes": "no limit",
    "threads": "its share of the cores",
    "seats": "two where memory allows",
    "memory_limit_bytes": "85 % of the memory",
    "power_limit_w": "no limit",
    "boundary_disk_bytes": "none",
    "checkpoint_milestone_every": "none",
    "metrics_port": "none",
}
"""What 0 stands for, by setting."""
_SPELLERS: Final = (
    ("_bytes_per_s", spell_rate),
    ("_bytes", spell_size),
    ("_share", "{}%".format),
    ("_minutes", "{}min".format),
)
_PARSERS: Final = (
    ("_bytes_per_s", parse_rate),
    ("_bytes", parse_size),
    ("_share", parse_percent),
    ("_limit_w", parse_watts),
    ("_minutes", parse_minutes),
)
