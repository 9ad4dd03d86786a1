"""The zoo's families, one per file: whatever file is here is found by all commands."""

from importlib import import_module
from pkgutil import iter_modules

from model_zoo.specs.family import Family

ARCHITECTURES: dict[str, Family] = {
    file.name: import_module(f"{__name__}.{file.name}").FAMILY for file in iter_modules(__path__)
}
"""Every family that a manifest may name as its architecture."""
