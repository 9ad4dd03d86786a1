"""An entry of the list of amendments on which a stage has agreed (``amendments/``)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from protocol import limits


class AgreedAmendment(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, order=True):
    """An amendment of the founder on which a stage has agreed."""

    digest: Annotated[bytes, Meta(min_length=32, max_length=32)]
    from_step: Annotated[int, Meta(ge=0, le=limits.MAX_STEP)]
    """The first step for which it holds."""


AgreedList = tuple[AgreedAmendment, ...]
"""In the order of their numbers, from the first one."""
