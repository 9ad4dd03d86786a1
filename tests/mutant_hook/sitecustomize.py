"""Import one module of the product with one change; no file is touched.

Python runs this at its start where this folder is on PYTHONPATH, so that the processes that a test
starts run the same mutant. The change stands in the environment variable ``MUTANT``, as JSON:
``module``, ``start`` and ``end`` (bytes of the source), ``before`` and ``after``.
"""

import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

VARIABLE = "MUTANT"


class _Changed(SourceFileLoader):
    """Compiles the changed source each time: compiled files know the sound one only."""

    def __init__(self, fullname: str, path: str, change: dict[str, str | int]) -> None:
        super().__init__(fullname, path)
        self._change = change

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return compile(
            changed(self.get_data(path), **self._change), path, "exec", dont_inherit=True
        )  # type: ignore[arg-type]


class _Finder(MetaPathFinder):
    def __init__(self, module: str, change: dict[str, str | int]) -> None:
        self._module, self._change = module, change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == self._module else None
        if spec and spec.origin:
            spec.loader = _Changed(fullname, spec.origin, self._change)
        return spec


def changed(source: bytes, *, start: int, end: int, before: str, after: str) -> bytes:
    """Return the source with the change.

    Raises:
        ValueError: The mutant was made of another source.
    """
    if source[start:end] != before.encode():
        raise ValueError("this file has changed since the mutant was made")
    return source[:start] + after.encode() + source[end:]


def install() -> None:
    """From now on import the module that ``MUTANT`` names with its change."""
    change = json.loads(os.environ[VARIABLE])
    sys.meta_path.insert(0, _Finder(change.pop("module"), change))


if __name__ == "sitecustomize" and VARIABLE in os.environ:
    install()
