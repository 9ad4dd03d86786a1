"""Joins data folders into one: their tokens one behind the other, each with its share of the run.

The parts are copied as they are, without anything between them, and every byte is checked on the
way. What was copied is on disk and noted before more is, so a mixture that was interrupted goes on
where it was. `specs.mixture` has what shares mean.
"""

import json
import re
import shutil
from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from itertools import accumulate, islice
from math import gcd, lcm
from pathlib import Path

import msgspec

from model_zoo.data import DataError
from model_zoo.datasets.assembly import (
    COPY_BYTES,
    NOTE,
    Assembly,
    Note,
    Tell,
    begin,
    building,
    read_note,
    write,
)
from model_zoo.datasets.folder import (
    LISTED_ROWS,
    Folder,
    Index,
    Tally,
    kept_digests,
    name_of,
    open_folder,
    proven_leaves,
)
from model_zoo.specs.data import MOST_BYTES, DataSpec
from model_zoo.specs.merkle import LEAF_BYTES, root
from model_zoo.specs.mixture import MOST_PARTS, MOST_SHARES, Part
from model_zoo.specs.shards import INDEX, TOKENIZER

_AT_ONCE = COPY_BYTES // LEAF_BYTES
_WEIGHT = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")


Choice = tuple[Path, Fraction]
"""A folder for a mixture, and its weight."""


def parse_choice(text: str) -> Choice:
    """Return the choice of `DIR:WEIGHT`; a folder may have a colon in its name.

    Raises:
        DataError: there is no weight, or it is no positive number.
    """
    name, _, weight = text.rpartition(":")
    if not name or Path(text).expanduser().exists():
        raise DataError(f"{text} has no weight, its share of what a run reads: such as {text}:3")
    if not _WEIGHT.fullmatch(weight) or not Fraction(weight):
        raise DataError(
            f"{weight[:40]!r} is no weight of {name}: take a number above 0, such as 3 or 0.25, of "
            "at most 12 digits before and after the point"
        )
    return Path(name).expanduser(), Fraction(weight)


def mix(choices: Sequence[Choice], out: Path, *, tell: Tell = lambda *_: None) -> Folder:
    """Make a data folder of others, or complete one that was interrupted.

    Raises:
        DataError: the folders cannot be mixed, or the disk refuses; what was copied stays.
    """
    if not 2 <= len(choices) <= MOST_PARTS:
        raise DataError(f"a mixture has 2 to {MOST_PARTS} folders, not {len(choices)}")
    folders = [open_folder(folder) for folder, _ in choices]
    _check(folders, out)
    weights = whole_weights([weight for _, weight in choices])
    parts = tuple(map(_part, folders, weights))
    plan = json.dumps({"mixture": msgspec.to_builtins(parts)})
    with building(out):
        if begin(out, plan):
            return open_folder(out)
        _copy(folders, out, tell)
        return _finish(folders, parts, out)


def whole_weights(given: Sequence[Fraction]) -> list[int]:
    """Return the smallest whole numbers with the ratios of the chosen weights.

    Raises:
        DataError: the numbers have too many digits.
    """
    times = lcm(*(weight.denominator for weight in given))
    whole = [int(weight * times) for weight in given]
    weights = [number // gcd(*whole) for number in whole]
    if sum(weights) > MOST_SHARES:
        raise DataError(
            f"the weights have too many digits: in whole numbers they add up to {sum(weights):,}, "
            f"and {MOST_SHARES:,} is the most; round them"
        )
    return weights


def _check(folders: Sequence[Folder], out: Path) -> None:
    """Raise DataError unless the folders go together."""
    first, seen = folders[0], dict[str, Path]()
    for folder in folders:
        spec = folder.index.spec
        if folder.path.resolve() == out.resolve():
            raise DataError(f"{out} is one of the folders: choose another --out")
        if spec.parts:
            raise DataError(f"{folder.path} is a mixture: name the folders that it was made of")
        if spec.digest in seen:
            same = seen[spec.digest]
            raise DataError(f"{same} and {folder.path} have the same tokens: name one of them")
        seen[spec.digest] = folder.path
        own, others = _settings(spec), _settings(first.index.spec)
        for what, value in own.items():
            if value != others[what]:
                raise DataError(
                    f"{first.path} and {folder.path} were made with different {what}: build one of "
                    "them again"
                )
    if (size := sum(folder.index.spec.size_bytes for folder in folders)) > MOST_BYTES:
        raise DataError(f"the folders have {size / 1e12:.1f} TB; {MOST_BYTES / 1e12:.1f} is most")


def _settings(spec: DataSpec) -> dict[str, object]:
    """What the folders of a mixture have in common, by what people call it in the plural."""
    answers, tokenizer = spec.answers, spec.tokenizer
    return {
        "tokenizers": tokenizer and tokenizer.digest,
        "settings of --chat": answers is not None,
        "settings of --context": answers and answers.context,
        "chat templates or libraries": tokenizer if answers else None,
    }


def _part(folder: Folder, weight: int) -> Part:
    spec = folder.index.spec
    learned = spec.answers.learned if spec.answers else None
    return Part(name_of(folder.path), spec.size_bytes, spec.digest, weight, learned)


def _copy(folders: Sequence[Folder], out: Path, tell: Tell) -> None:
    """Copy what is not yet copied."""
    sizes = [folder.index.spec.size_bytes for folder in folders]
    done, total = read_note(out).size_bytes, sum(sizes)
    shards = Assembly(out, done)
    if (free := shutil.disk_usage(out).free) < total - done:
        raise DataError(
            f"the mixture needs {(total - done) / 1e9:.1f} GB more, and the disk of {out} has "
            f"{free / 1e9:.1f} GB: free space, or choose a folder on another disk"
        )
    tell(done, total)
    for folder, end in zip(folders, accumulate(sizes), strict=True):
        begun = shards.size_bytes - (end - folder.index.spec.size_bytes)
        if shards.size_bytes >= end:
            continue
        leaves = proven_leaves(folder, begun // LEAF_BYTES)
        while data := b"".join(islice(leaves, _AT_ONCE)):
            shards.append(data)
            write(out / NOTE, msgspec.json.encode(Note(size_bytes=shards.size_bytes)))
            tell(shards.size_bytes, total)
    shards.end()


def _finish(folders: Sequence[Folder], parts: tuple[Part, ...], out: Path) -> Folder:
    first = folders[0]
    if first.tokenizer is not None:
        write(out / TOKENIZER, first.tokenizer.data)
    indices, common = [folder.index for folder in folders], first.index.spec
    tally = reduce(Tally.plus, (index.tally for index in indices))
    answers = common.answers and msgspec.structs.replace(common.answers, learned=tally.learned)
    size_bytes, digest = sum(part.size_bytes for part in parts), root(kept_digests(out)).hex()
    spec = DataSpec(name_of(out), size_bytes, digest, common.tokenizer, answers, parts)
    skipped = tuple(name for index in indices for name in index.skipped_rows)[:LISTED_ROWS]
    write(out / INDEX, msgspec.json.encode(Index(spec, tally, skipped)))
    return open_folder(out)
