"""What a manifest is made of: a field that has its default is left out of the encoding.

So there is one encoding of each description, and a manifest is refused that has another. The
defaults are part of the protocol: with another one, the same bytes would mean another run.
"""

from msgspec import Struct
from msgspec.structs import force_setattr


class Description(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all parts of a manifest; whoever has a `__post_init__` of its own calls this one."""

    def __post_init__(self) -> None:
        # msgspec leaves out a value that is the default, not one that equals it
        defaults = self.__struct_defaults__
        with_default = self.__struct_fields__[-len(defaults) :] if defaults else ()
        for name, default in zip(with_default, defaults, strict=True):
            if getattr(self, name) == default:
                force_setattr(self, name, default)
