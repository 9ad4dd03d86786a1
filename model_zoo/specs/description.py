"""What a manifest is made of: a field that has its default is left out of the encoding.

So there is one encoding of each description, and a manifest is refused that has another. The
defaults are part of the protocol: with another one, the same bytes would mean another run.
"""

from functools import cache

from msgspec import Struct, ValidationError, convert
from msgspec.structs import FieldInfo, fields, force_setattr


class Description(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all parts of a manifest; whoever has a `__post_init__` of its own calls this one."""

    def __post_init__(self) -> None:
        # msgspec leaves out a value that is the default, not one that equals it
        for field in _fields(type(self)):
            if getattr(self, field.name) == field.default:
                force_setattr(self, field.name, field.default)


class Ranged(Description, frozen=True):
    """A description whose fields' types hold however it is made, not only where it is decoded.

    Raises:
        ValueError: a field is of another type, or out of its range.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in _fields(type(self)):
            value = getattr(self, field.name)
            try:
                convert(value, field.type)
            except ValidationError as error:
                words = str(error).replace("Expected", "should be").replace("Invalid", "is no")
                wrong = f"{field.name} {words.replace('`', '')}; it is {str(value)[:40]}"
                raise ValueError(wrong) from error


@cache
def _fields(kind: type[Description]) -> tuple[FieldInfo, ...]:
    return fields(kind)
