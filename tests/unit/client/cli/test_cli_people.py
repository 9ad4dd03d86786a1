"""Names, the leaderboard and what a model is for, in commands that show people."""

import json
from pathlib import Path

import pytest

from client.cli.commands.create import sign
from client.cli.consent import terms
from client.cli.models.card import contributors_of
from client.cli.reach.home import find_home
from client.cli.terminal.swarm_text import summary
from client.config import Settings
from client.errors import ExitCode
from client.store.paths import Kept, home_folders
from client.store.persisted import Persisted
from client.store.records import KeptContributions
from protocol.ids import PeerId
from protocol.invite import SwarmFile
from tests.support.cli_process import Within
from tests.support.saved_swarms import SIGNER, founded

ANNA = "12D3KooWexample4AphPb"


def for_what(purpose: str = "Haiku in Basque") -> SwarmFile:
    return sign(founded(name="mine", purpose=purpose).manifest, SIGNER, ())


def test_who_contributed_is_kept_where_the_volunteer_does_not_run(
    home: Path, within: Within
) -> None:
    swarm, folders = for_what(), home_folders(home)
    anna = PeerId(ANNA)
    kept = KeptContributions({0: 9}, {anna: 420}, {anna: "Anna"})
    Persisted(folders.of(swarm.swarm, Kept.CONTRIBUTIONS), KeptContributions).save(kept)
    (one,) = contributors_of(find_home(), swarm.swarm, swarm.manifest)
    assert (one.peer, one.name, one.microbatches) == (ANNA, "Anna", 420)
    assert one.tokens == 420 * swarm.manifest.tokens_per_microbatch
    folders.of(swarm.swarm, Kept.CONTRIBUTIONS).write_bytes(b"\xc1" * 99)
    assert contributors_of(find_home(), swarm.swarm, swarm.manifest) == []


def test_a_name_is_set_shown_to_its_owner_and_removed(home: Path, within: Within) -> None:
    def nickname() -> str:
        name: str = json.loads(within("config", "show", "--json").stdout)["settings"]["nickname"]
        return name

    assert within("config", "set", "nickname", "  Anna's   PC ").returncode == ExitCode.OK
    assert nickname() == "Anna's PC"
    for bad in ("a(b", "x" * 25, "a\u202eb"):
        said = within("config", "set", "nickname", bad)
        assert said.returncode == ExitCode.CONFIG, bad
        assert "nickname" in said.stderr
    assert nickname() == "Anna's PC"
    assert within("config", "set", "nickname", "").returncode == ExitCode.OK
    assert nickname() == ""


def test_who_joins_is_told_what_it_is_for_and_that_others_see_the_name(tmp_path: Path) -> None:
    swarm = for_what()
    assert next(summary(swarm.manifest, swarm.swarm)).endswith(", for Haiku in Basque:")
    plain = for_what("")
    assert next(summary(plain.manifest, plain.swarm)).endswith("open to anybody:")
    told = " ".join(terms(Settings(nickname="Anna"), tmp_path, swarm))
    assert 'the name "Anna"' in told
    assert "the name" not in " ".join(terms(Settings(), tmp_path, swarm))


@pytest.mark.parametrize("purpose", ["two\nlines\u202e", "x" * 161, "a\u200bb"])
def test_a_purpose_that_cannot_be_shown_founds_nothing(
    home: Path, within: Within, purpose: str
) -> None:
    out = ("--out", str(home / "x.swarm"))
    within.ends(ExitCode.USAGE, "create", "--no-measure", "--purpose", purpose, *out)
    assert not (home / "x.swarm").exists()
