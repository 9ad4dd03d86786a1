"""Settings of a node: one frozen struct, and the origin of each value.

Flags win over ``VOLUNTEER_*`` variables, those over the user's file, that over the administrator's,
that over the defaults. Nothing else in the program reads the environment for settings. A name that
does not exist, as after an upgrade, is left out and told, with the nearest one that does.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from client.devices import devices_of
from client.errors import ConfigError
from client.quantities import (
    parse_minutes,
    parse_percent,
    parse_rate,
    parse_size,
    spell_rate,
    spell_size,
)
from client.schedule import parse_schedule
from protocol.address import parse_address
from protocol.hosts import number_of
from protocol.names import nickname_problem, normal

ENVIRONMENT_PREFIX: Final = "VOLUNTEER_"
NOT_SETTINGS: Final = frozenset(("HOME", "SWARM"))
"""Variables with the prefix that other parts of the program read."""
UNREADABLE: Final = "make it readable; VOLUNTEER_HOME names another"
MAX_CONFIG_FILE_BYTES: Final = 256 * 1024

MIN_RATE_BYTES_PER_S: Final = 100_000
"""Least rate; below it, others time out waiting for our transfers."""

_EXPECTED: Final = re.compile(r"Expected `(?P<type>\w+)`(, got `.*`)?(?P<bound>.*)")
"""How msgspec says that a value is not of a type, or not within its bounds."""
_TYPE_WORDS: Final = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "str": "text",
}

_ZERO: Final = re.compile(r"; 0: ([^;.]+)")
"""How the help of a setting says what 0 means."""

MIB: Final = 2**20
GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Form:
    """The notation of a setting's values, and their constraints beyond the bounds."""

    parse: Callable[[str], int] | None = None
    """Reads an amount with its unit; None: there is no unit."""
    spell: Callable[[int], str] = str
    """Writes the amount so that ``parse`` reads it."""
    check: Callable[[Any], object] = lambda value: value
    """Returns the value in its one spelling; raises ``ValueError``."""


@dataclass(frozen=True, slots=True)
class About:
    """The description of a setting for people."""

    help: str
    """Its effect, for --help, the manual page and the table of the README; behind ``0:`` the
    meaning of 0, unless that is no value, or means itself."""
    short_flag: str = ""
    """A shorter name of its flag, without the unit."""


def _check_rate(bytes_per_s: int) -> int:
    if 0 < bytes_per_s < MIN_RATE_BYTES_PER_S:
        words = f"at least {spell_rate(MIN_RATE_BYTES_PER_S)}, such as 20Mbit/s, or 0 for no limit"
        raise ValueError(f"{bytes_per_s} bytes/s are too few: {words}")
    return bytes_per_s


def _check_size(size_bytes: int) -> int:
    if 0 < size_bytes < MIB:
        raise ValueError(f"{size_bytes} bytes are too few: at least 1MiB, such as 512MB or 4GiB")
    return size_bytes


def _check_device(names: str) -> str:
    return ",".join(devices_of(names))


def _check_nickname(text: str) -> str:
    name = normal(text)
    if problem := nickname_problem(name):
        raise ValueError(problem)
    return name


def _check_addresses(texts: tuple[str, ...]) -> tuple[str, ...]:
    addresses = [parse_address(text) for text in texts]
    for address in addresses:
        number = number_of(address.host)
        if number is not None and (number.is_unspecified or number.is_multicast):
            raise ValueError(
                f"nobody can dial {address.host}: announce the address at which others reach you"
            )
    return tuple(map(str, addresses))


def _check_hours(text: str) -> str:
    parse_schedule(text)
    return text.strip()


EVERYWHERE: Final = "all"
"""In place of a host to listen on: all addresses of this machine, IPv4 and IPv6."""


def _check_relay(text: str) -> str:
    """Return what is lent to those that cannot be dialled, in its one spelling."""
    text = text.strip()
    if text.lower() == "off":
        return "off"
    if not text.endswith("%"):
        rate = _check_rate(parse_rate(text))
        return spell_rate(rate) if rate else "off"
    if not 1 <= (percent := parse_percent(text)) <= 100:
        raise ValueError("a share is 1% to 100%; off: none")
    return f"{percent}%"


def lent_bytes_per_s(relay: str, upload_bytes_per_s: float) -> float:
    """Return the rate that the setting ``relay`` lends of an upload; 0: none."""
    if relay == "off":
        return 0.0
    if relay.endswith("%"):
        return parse_percent(relay) / 100 * upload_bytes_per_s
    return float(parse_rate(relay))


Port = Annotated[int, Meta(ge=0, le=65535)]
SIZE: Final = Form(parse_size, spell_size, _check_size)
Size = Annotated[int, Meta(ge=0, le=2**50), SIZE]
"""Bytes; may be written like ``512MiB`` or ``10MB``."""
Rate = Annotated[int, Meta(ge=0, le=2**50), Form(parse_rate, spell_rate, _check_rate)]
"""Bytes per second; may be written like ``2MB/s`` or ``20Mbit/s``."""
Share = Annotated[int, Meta(ge=1, le=100), Form(parse_percent, "{}%".format)]
Minutes = Annotated[int, Meta(ge=1, le=1440), Form(parse_minutes, "{}min".format)]
Device = Annotated[str, Meta(max_length=256), Form(check=_check_device)]
Hours = Annotated[str, Meta(max_length=1024), Form(check=_check_hours)]
"""Windows of the local clock."""
Addresses = Annotated[tuple[str, ...], Meta(max_length=8), Form(check=_check_addresses)]


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a node, each declared here and nowhere else.

    A field's type has the bounds (``Meta``), how it is written (``Form``) and what people are told
    (``About``). Its flag, its ``VOLUNTEER_*`` variable, its key in the file, ``volunteer config``,
    the table of client/README.md and the manual page are made from that. All count from the next
    start of the node, but for those in ``LIVE``.
    """

    listen_host: Annotated[
        str,
        Meta(max_length=64),
        About("Address to listen on, IPv4 or IPv6; all: every address of both."),
    ] = EVERYWHERE
    listen_port: Annotated[
        Port,
        About("Port to listen on; 0: that of the last run, else any."),
    ] = 0
    announce: Annotated[
        Addresses, About("Address to announce instead of the detected ones; may be repeated.")
    ] = ()
    """Such as /ip4/203.0.113.7/tcp/4001 of a forward."""
    no_port_mapping: Annotated[
        bool, About("Do not ask the router, by UPnP and for IPv6 by PCP, to let others in.")
    ] = False
    dial_timeout_s: Annotated[
        float,
        Meta(gt=0, le=600),
        About("Longest wait for the first member of the swarm, in seconds."),
    ] = 20.0
    upload_limit_bytes_per_s: Annotated[
        Rate,
        About("Upload limit, such as 2MB/s or 20Mbit/s; 0: no limit.", "--upload-limit"),
    ] = 0
    download_limit_bytes_per_s: Annotated[
        Rate,
        About("Download limit, such as 2MB/s or 20Mbit/s; 0: no limit.", "--download-limit"),
    ] = 0
    relay: Annotated[
        str,
        Meta(max_length=32),
        Form(check=_check_relay),
        About(
            "Upload lent to members that nobody can dial, if this one can be: a share such as "
            "25%, a rate such as 2MB/s, or off."
        ),
    ] = "25%"
    daily_quota_bytes: Annotated[
        Size,
        About(
            "Bytes sent and received per day, such as 50GB, then a pause until midnight; 0: no "
            "limit.",
            "--daily-quota",
        ),
    ] = 0
    nickname: Annotated[
        str,
        Meta(max_length=256),
        Form(check=_check_nickname),
        About("Name that other members see beside this volunteer's id."),
    ] = ""
    """Anybody may choose any; it identifies nobody."""
    data_dir: Annotated[
        str, Meta(max_length=4096), About("Folder for identity, swarms and checkpoints.")
    ] = ""
    """Empty: the system's place for them."""
    device: Annotated[
        Device,
        About(
            "Where to compute: auto, cpu, cuda or cuda:N (AMD's GPUs, too), mps (Apple's); several "
            "as one volunteer: 0,1,2,3.",
            "--devices",
        ),
    ] = "auto"
    threads: Annotated[
        int,
        Meta(ge=0, le=1024),
        About("CPU threads to compute with; 0: one per core of this machine."),
    ] = 0
    compute_share: Annotated[Share, About("Share of the time to compute, such as 50%.")] = 100
    seats: Annotated[
        int,
        Meta(ge=0, le=4),
        About("Most stages to hold; 0: two where memory allows; 1: never a second one."),
    ] = 0
    memory_limit_bytes: Annotated[
        Size,
        About("Memory to compute with, such as 4GiB; 0: 85 % of this machine's.", "--memory-limit"),
    ] = 0
    vram_share: Annotated[Share, About("Share of the GPU's memory to use, such as 50%.")] = 100
    offload: Annotated[
        Literal["auto", "on", "off"],
        About(
            "Keep moments and gradient sums in a GPU's host memory; auto: where a stage does not "
            "fit otherwise."
        ),
    ] = "auto"
    compile: Annotated[
        Literal["auto", "on", "off"],
        About(
            "Compile a stage's blocks with torch.compile when it is opened; auto: on an NVIDIA or "
            "AMD GPU."
        ),
    ] = "auto"
    only_when_idle: Annotated[bool, About("Compute only while nobody uses this machine.")] = False
    """By its keyboard and screen."""
    idle_after_minutes: Annotated[
        Minutes, About("Minutes without keyboard or mouse after which nobody uses it.")
    ] = 5
    not_on_battery: Annotated[bool, About("Compute only on mains power.")] = False
    schedule: Annotated[
        Hours, About('Hours to compute in, such as "22:00-07:00 mon-fri; 00:00-24:00 sat,sun".')
    ] = ""
    data_cache_bytes: Annotated[
        int,
        Meta(ge=64 * MIB, le=2**50),
        SIZE,
        About(
            "Disk for training data copied part by part from members, such as 2GB.",
            "--data-cache",
        ),
    ] = 2 * GIB
    """Of data that a founder has made tokens of; what was used longest ago goes first."""
    checkpoint_keep: Annotated[
        int, Meta(ge=1, le=1000), About("Checkpoints to keep per stage.")
    ] = 2
    metrics_port: Annotated[Port, About("Port for Prometheus metrics; 0: none.")] = 0
    metrics_host: Annotated[
        str,
        Meta(min_length=1, max_length=64),
        About(
            "Address of this machine to serve the metrics on, to whoever reaches it, without a "
            "password; loopback is for this machine alone."
        ),
    ] = "127.0.0.1"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], About("Lowest level of messages to show.")
    ] = "info"
    log_format: Annotated[Literal["text", "json"], About("Format of messages on stderr.")] = "text"

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices to compute on; several are one volunteer."""
        return tuple(self.device.split(","))


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of one setting, taken from its field."""

    name: str
    type: Any
    """With its bounds."""
    default: Any
    about: About
    form: Form

    @property
    def variable(self) -> str:
        """The name of its environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """The long name of its flag."""
        return f"--{self.name.replace('_', '-')}"

    def named(self, origin: str) -> str:
        """Return how the user wrote it: the flag, the variable, or the key with its place."""
        if origin == FLAG:
            return self.about.short_flag or self.flag
        if origin in ("", self.variable):
            return origin or self.name
        return f"{self.name} in {origin}"

    def convert(self, value: object) -> object:
        """Return a value of a flag, a variable or a file as the node uses it.

        Raises:
            ValueError: it is not of the type or not within its bounds.
        """
        text = value if isinstance(value, str) else None
        if text is not None and self.form.parse is not None:
            value = self.form.parse(text)
        elif text is not None and isinstance(self.default, tuple):
            value = [part for part in text.split(",") if part]
        # variables are always text, so text may stand for a number
        return self.form.check(msgspec.convert(value, self.type, strict=text is None))

    @property
    def choices(self) -> tuple[str, ...]:
        """The only values that it may have; empty: it may have others."""
        kind = get_args(self.type)[0]
        return get_args(kind) if get_origin(kind) is Literal else ()

    def fault_words(self, error: Exception) -> str:
        """Return what is wrong with a value, without the names of Python's types."""
        if str(error).startswith("Invalid enum value"):
            return f"it must be one of {', '.join(self.choices)}"
        found = _EXPECTED.match(str(error))
        if found is None:
            return str(error)
        return f"it must be {_TYPE_WORDS.get(found['type'], found['type'])}{found['bound']}"

    def zero_words(self, value: object) -> str:
        """Return the meaning of a 0 that is no amount; empty for other values."""
        zero = _ZERO.search(self.about.help) if value == 0 else None
        return zero[1] if zero else ""

    def words(self, value: object) -> str:
        """Return a value as people read it: amounts with their unit, and the meaning of 0.

        Amounts are written as they may be set.
        """
        if words := self.zero_words(value):
            return words
        if isinstance(value, int) and not isinstance(value, bool):
            return self.form.spell(value)
        if isinstance(value, list | tuple):
            return ", ".join(map(str, value)) or "none"
        return "not set" if value == "" else msgspec.json.encode(value).decode().strip('"')


def _declared() -> Iterator[Setting]:
    types = get_type_hints(Settings, include_extras=True)
    for field in msgspec.structs.fields(Settings):
        kind = types[field.name]
        about = next(each for each in kind.__metadata__ if isinstance(each, About))
        form = next((each for each in kind.__metadata__ if isinstance(each, Form)), Form())
        yield Setting(field.name, kind, field.default, about, form)


FLAG: Final = "flag"
"""Origin of a value that a flag gave."""
SETTINGS: Final = {setting.name: setting for setting in _declared()}
"""Every setting by name, in the order of their declaration."""


LIVE: Final = (
    "upload_limit_bytes_per_s",
    "download_limit_bytes_per_s",
    "daily_quota_bytes",
    "only_when_idle",
    "idle_after_minutes",
    "not_on_battery",
    "schedule",
)
"""Settings that a running node takes from the files when they change there."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings and the origin of each: a flag, a variable's name, a file's path, ``default``."""

    settings: Settings
    origins: Mapping[str, str]
    unknown: tuple[str, ...] = ()
    """Names in files and variables that are no settings, in words."""


def resolve(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    user_file: Path | None = None,
    system_file: Path | None = None,
    faults: list[ConfigError] | None = None,
) -> Resolved:
    """Merge all sources by precedence.

    Args:
        flags: values by field name; None means that the flag was not given.
        environ: environment variables.
        user_file: the user's settings; it need not exist.
        system_file: the administrator's; it need not exist.
        faults: takes what is faulty, which then counts as not set; None: it is raised.

    Raises:
        ConfigError: a value of the wrong type or range, or an unreadable file.
    """
    values: dict[str, object] = {}
    origins = dict.fromkeys(SETTINGS, "default")
    unknown = []
    for name, value, origin in _layers(flags, environ, user_file, system_file, faults):
        if name not in SETTINGS:
            no_setting = _unknown(name, origin)
            unknown.append(f"{no_setting} has no effect: {no_setting.next_step}")
            continue
        try:
            values[name] = _convert(name, value, origin)
            origins[name] = origin
        except ConfigError as fault:
            _note(fault, faults)
    return Resolved(Settings(**values), origins, tuple(unknown))  # type: ignore[arg-type]


def check_setting(name: str, text: str | None) -> object:
    """Return the value that ``text`` means for a setting; None: only whether there is one.

    Raises:
        ConfigError: no such setting, or not a value for it.
    """
    if name not in SETTINGS:
        raise _unknown(name, "the settings")
    return None if text is None else _convert(name, text, "")


def _layers(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    user_file: Path | None,
    system_file: Path | None,
    faults: list[ConfigError] | None,
) -> Iterator[tuple[str, object, str]]:
    """Yield (name, value, origin), weakest source first; a name may be no setting."""
    for file in (system_file, user_file):
        try:
            table = _table(file) if file is not None else {}
        except ConfigError as fault:
            _note(fault, faults)
            continue
        yield from ((name, value, str(file)) for name, value in table.items())
    yield from _from_environment(environ)
    yield from ((name, value, FLAG) for name, value in flags.items() if value is not None)


def _note(fault: ConfigError, faults: list[ConfigError] | None) -> None:
    if faults is None:
        raise fault
    faults.append(fault)


def _table(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_CONFIG_FILE_BYTES + 1)
        if len(text) > MAX_CONFIG_FILE_BYTES:
            raise ConfigError(f"{path} is too long for settings", "correct the file")
        return tomllib.loads(text.decode("utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", UNREADABLE) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", "correct the file") from error


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, object, str]]:
    """An empty variable is one that is not set, but where a setting's value may be empty."""
    for variable, value in environ.items():
        suffix = variable.removeprefix(ENVIRONMENT_PREFIX)
        if suffix == variable or suffix in NOT_SETTINGS:
            continue
        name = suffix.lower()
        if value or (name in SETTINGS and SETTINGS[name].default in ("", ())):
            yield name, value, variable


def _unknown(key: str, where: str) -> ConfigError:
    near = difflib.get_close_matches(key, SETTINGS, n=1)
    spelled = [key, *near]
    if where.startswith(ENVIRONMENT_PREFIX):
        spelled = [ENVIRONMENT_PREFIX + name.upper() for name in spelled]
        where = "the environment"
    hint = (
        f"did you mean {spelled[1]}?" if near else "run volunteer config show to list the settings"
    )
    return ConfigError(f"unknown setting {spelled[0]!r} in {where}", hint)


def _convert(name: str, value: object, origin: str) -> object:
    try:
        return SETTINGS[name].convert(value)
    except (msgspec.ValidationError, ValueError) as error:
        named = SETTINGS[name].named(origin)
        words = SETTINGS[name].fault_words(error)
        raise ConfigError(f"{named}: {words}", f"correct {named}") from error
