"""Settings: precedence, origins, and errors that say what was probably meant."""

import contextlib
import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.cli.settings.flags import COMPUTING, RelayFlags, SettingFlags
from client.config import SETTINGS, Settings, lent_bytes_per_s, resolve
from client.errors import ConfigError, ExitCode
from client.quantities import parse_rate, parse_size, spell_rate, spell_size


def toml(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", SETTINGS)
def test_a_declaration_is_enough(name: str, tmp_path: Path) -> None:
    """Each is a flag, a variable and a key, with a sentence on it; its own spelling is a value."""
    setting = SETTINGS[name]
    assert setting.about.help.endswith(".")
    spelled = setting.words(setting.default)
    if spelled in (setting.zero_words(0), "none", "not set"):
        spelled = "" if setting.default in ("", ()) else "0"
    for flags, environ, file in (
        ({name: spelled}, {}, ""),
        ({}, {setting.variable: spelled}, ""),
        ({}, {}, f"{name} = '{spelled}'"),
    ):
        resolved = resolve(flags, environ, toml(tmp_path, "config.toml", file))
        assert resolved.settings == Settings()
        assert resolved.origins[name] != "default"
    assert name in {field.name for field in fields(SettingFlags)}
    assert (name in {field.name for field in fields(RelayFlags)}) is (name not in COMPUTING)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("threads", 0, "one per core of this machine"),
        ("threads", 3, "3"),
        ("memory_limit_bytes", 0, "85 % of this machine's"),
        ("upload_limit_bytes_per_s", 2_000_000, "16Mbit/s"),
        ("announce", (), "none"),
        ("announce", ("a", "b"), "a, b"),
        ("schedule", "", "not set"),
        ("not_on_battery", False, "false"),
        ("offload", "auto", "auto"),
        ("dial_timeout_s", 20.0, "20.0"),
    ],
)
def test_a_value_is_shown_as_people_read_it(name: str, value: object, words: str) -> None:
    assert SETTINGS[name].words(value) == words


def test_every_source_beats_the_next(tmp_path: Path) -> None:
    weakest = "threads = 1\nseats = 1\nlisten_port = 1\ncheckpoint_keep = 10"
    system = toml(tmp_path, "system.toml", weakest)
    user = toml(tmp_path, "user.toml", "threads = 2\nseats = 2\nlisten_port = 2")
    environ = {"VOLUNTEER_THREADS": "3", "VOLUNTEER_SEATS": "3", "PATH": "/bin"}
    flags = {"threads": 4, "log_level": None}
    resolved = resolve(flags, environ, user, system)
    found = resolved.settings
    assert (found.threads, found.seats, found.listen_port, found.checkpoint_keep) == (4, 3, 2, 10)
    origins = [
        resolved.origins[name] for name in ("threads", "seats", "listen_port", "checkpoint_keep")
    ]
    assert origins == ["flag", "VOLUNTEER_SEATS", str(user), str(system)]
    assert resolved.origins["log_level"] == "default"


@pytest.mark.parametrize(
    ("flags", "environ", "file", "problem", "hint"),
    [
        ({}, {}, "threads = 'many'", ": it must be a whole number", "correct threads"),
        ({"threads": "-1"}, {}, "", "it must be a whole number >= 0", "correct --threads"),
        ({}, {}, "log_level = 'loud'", "must be one of debug, info, warning, error", "correct"),
        ({}, {}, "announce = 3", "it must be a list", "correct"),
        ({}, {}, "memory_limit_bytes = 'a lot'", "not a size", "correct"),
        ({"upload_limit_bytes_per_s": "50KB/s"}, {}, "", "at least 800kbit/s", "--upload-limit"),
        ({"upload_limit_bytes_per_s": "2"}, {}, "", "such as 20Mbit/s", "--upload-limit"),
        ({"memory_limit_bytes": "4"}, {}, "", "--memory-limit: 4 bytes are too few", "correct"),
        ({}, {}, "daily_quota_bytes = 50", "such as 512MB", "correct daily_quota_bytes in"),
        ({"vram_share": "0%"}, {}, "", "--vram-share: ", "correct"),
        ({"vram_share": "half"}, {}, "", "not a percentage", "correct"),
        ({}, {"VOLUNTEER_SCHEDULE": "nights"}, "", "not a window", "correct VOLUNTEER_SCHEDULE"),
        ({}, {}, "announce = ['a','b','c','d','e','f','g','h','i']", "announce", "correct"),
        ({}, {}, "announce = ['/ip4/0.0.0.0/tcp/4001']", "nobody can dial 0.0.0.0", "correct"),
        ({}, {}, "announce = ['/ip6/::/tcp/4001']", "nobody can dial ::", "correct"),
        ({}, {}, "announce = ['/ip4/224.0.0.1/tcp/1']", "nobody can dial 224.0.0.1", "correct"),
        ({}, {}, "threads = ", "not TOML", "correct"),
    ],
)
def test_errors_name_the_place_and_the_mend(
    tmp_path: Path,
    flags: dict[str, object],
    environ: dict[str, str],
    file: str,
    problem: str,
    hint: str,
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(flags, environ, toml(tmp_path, "config.toml", file))
    assert problem in str(caught.value)
    assert hint in caught.value.next_step
    assert caught.value.exit_code == ExitCode.CONFIG == 78


def test_names_that_are_no_settings_are_told_and_the_others_hold(tmp_path: Path) -> None:
    file = toml(tmp_path, "config.toml", "lisen_port = 1\ncheckpoint_every_bytes = 3\nseats = 1")
    resolved = resolve({}, {"VOLUNTEER_THREAD": "1", "VOLUNTEER_THREADS": "2"}, file)
    assert (resolved.settings.seats, resolved.settings.threads) == (1, 2)
    typed, old, variable = resolved.unknown
    assert (
        typed == f"unknown setting 'lisen_port' in {file} has no effect: did you mean listen_port?"
    )
    assert f"'checkpoint_every_bytes' in {file}" in old
    assert (
        "'VOLUNTEER_THREAD' in the environment has no effect: did you mean VOLUNTEER_THREADS?"
        in variable
    )


@pytest.mark.parametrize("fault", ["threads = 'many'", "threads = "])
def test_what_is_faulty_may_count_as_not_set_while_the_rest_holds(
    tmp_path: Path, fault: str
) -> None:
    system = toml(tmp_path, "system.toml", "data_dir = '/there'")
    faults: list[ConfigError] = []
    resolved = resolve({}, {}, toml(tmp_path, "config.toml", fault), system, faults)
    assert resolved.settings == Settings(data_dir="/there")
    assert [fault.exit_code for fault in faults] == [ExitCode.CONFIG]


def test_a_file_that_is_no_text_or_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    for content in (b"\xff\xfe", b"#" * 300_000):
        path.write_bytes(content)
        with pytest.raises(ConfigError):
            resolve({}, {}, path)


def test_an_empty_variable_is_not_set_unless_empty_is_a_value(tmp_path: Path) -> None:
    file = toml(
        tmp_path, "config.toml", "threads = 3\nnot_on_battery = true\nschedule = '1:00-2:00'"
    )
    names = ("THREADS", "NOT_ON_BATTERY", "UPLOAD_LIMIT_BYTES_PER_S", "DEVICE", "SCHEDULE")
    resolved = resolve({}, {f"VOLUNTEER_{name}": "" for name in names}, file)
    found = resolved.settings
    assert (found.threads, found.not_on_battery, found.upload_limit_bytes_per_s) == (3, True, 0)
    assert (found.device, found.schedule) == ("auto", "")
    assert resolved.origins["threads"] == str(file)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("2MB", 2_000_000),
        ("2MB/s", 2_000_000),
        ("1 MiB/s", 2**20),
        ("800kbit", 100_000),
        ("20Mbitps", 2_500_000),
        ("1.5 Mbit/s", 187_500),
    ],
)
def test_rates(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("20Mbps", "20M"),
        ("1.5gb/S", "1.5g"),
        ("1Tb/s", "1T"),
        ("9600 bps", "9600 "),
    ],
)
def test_a_rate_in_bits_or_bytes_is_not_guessed(text: str, amount: str) -> None:
    words = f"{text}: bits or bytes? write {amount}bit/s or {amount}B/s"
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        parse_rate(text)
    assert parse_rate(f"{amount}B/s") == pytest.approx(8 * parse_rate(f"{amount}bit/s"))


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("123", 123),
        ("1KiB", 1024),
        ("2gb", 2 * 10**9),
        ("1.5GiB", 3 * 2**29),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "-1", "1e9", "1 XB", "MiB", "1,5GB", "\u0661", "9" * 20])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=5))
def test_no_environment_crashes(environ: dict[str, str]) -> None:
    hostile = {f"VOLUNTEER_{name.upper()}": value for name, value in environ.items()}
    with contextlib.suppress(ConfigError):
        resolve({}, hostile)


@given(st.integers(0, 10**15 - 1) | st.integers(0, 10**6).map(lambda n: n << 20))
def test_a_spelled_amount_is_read_as_the_same(amount: int) -> None:
    assert parse_size(spell_size(amount)) == amount
    assert parse_rate(spell_rate(amount)) == amount


@pytest.mark.parametrize(
    ("text", "spelled", "lent"),
    [
        ("25%", "25%", 2.5e6),
        ("off", "off", 0.0),
        ("0", "off", 0.0),
        ("2MB/s", "16Mbit/s", 2e6),
        ("20 Mbit/s", "20Mbit/s", 2.5e6),
    ],
)
def test_what_a_relay_lends_of_ten_megabytes(text: str, spelled: str, lent: float) -> None:
    relay = resolve({"relay": text}, {}).settings.relay
    assert relay == spelled
    assert lent_bytes_per_s(relay, 1e7) == lent


@pytest.mark.parametrize("text", ["", "0%", "101%", "-5%", "yes", "20Mb/s", "1kB/s", "%"])
def test_what_a_relay_cannot_lend(text: str) -> None:
    with pytest.raises(ConfigError, match="relay"):
        resolve({"relay": text}, {})
