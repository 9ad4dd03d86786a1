"""Limits that change in the configuration file while a volunteer runs."""

from pathlib import Path

import pytest

from client.cli.serving.renewal import Renewal
from client.config import Settings, resolve

MB = 1_000_000


class Files:
    """A volunteer that was started with the user's file, and some flags."""

    def __init__(self, folder: Path, text: str, **flags: object) -> None:
        self.path, self.said = folder / "config.toml", list[str]()
        self.path.write_text(text)
        system = folder / "none.toml"
        resolved = resolve(flags, {}, self.path, system)
        self.settings = resolved.settings
        self._renewal = Renewal(resolved, self.path, system, self.said.append)

    def now(self, text: str | None = None) -> Settings:
        if text is not None:
            self.path.write_text(text)
        self.settings = self._renewal(self.settings)
        return self.settings


def test_limits_of_the_file_are_taken_again(tmp_path: Path) -> None:
    files = Files(tmp_path, 'upload_limit_bytes_per_s = "2MB/s"\nthreads = 2\n')
    before = files.settings
    assert files.now() == before
    text = 'upload_limit_bytes_per_s = "1MB/s"\nthreads = 1\nschedule = "22:00-07:00"\n'
    now = files.now(text)
    assert (now.upload_limit_bytes_per_s, now.schedule) == (MB, "22:00-07:00")
    assert now.threads == 2, "from the next start"
    assert files.now("").upload_limit_bytes_per_s == 0


def test_names_that_were_no_settings_at_the_start_hinder_nothing(tmp_path: Path) -> None:
    files = Files(tmp_path, "gone = 1\n")
    assert files.now("gone = 1\nnot_on_battery = true\n").not_on_battery
    assert not files.said


def test_what_a_flag_has_said_stays(tmp_path: Path) -> None:
    files = Files(tmp_path, "", upload_limit_bytes_per_s="2MB/s")
    text = 'upload_limit_bytes_per_s = "1MB/s"\ndownload_limit_bytes_per_s = "1MB/s"\n'
    now = files.now(text)
    assert (now.upload_limit_bytes_per_s, now.download_limit_bytes_per_s) == (2 * MB, MB)


@pytest.mark.parametrize("text", ["schedule = ", 'schedule = "never"', "bandwidth = 1"])
def test_a_mistake_in_the_file_changes_nothing_and_is_told_once(tmp_path: Path, text: str) -> None:
    files = Files(tmp_path, "not_on_battery = true\n")
    before = files.settings
    assert files.now(text) is before
    assert files.now() is before
    assert len(files.said) == 1
    assert "the limits stay as they were" in files.said[0]
    assert not files.now("not_on_battery = false\n").not_on_battery
