"""Ingredients of the matching that an ablation turns off."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from msgspec import structs

from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.matching.last_members import LastMembers


@dataclass(frozen=True, slots=True)
class Design:
    """The ingredients in force."""

    dual_homing: bool = True
    """Volunteers that can also hold an adjacent stage and split their time."""
    moves: bool = True
    """Replicas move to a stage that calls them."""

    def applied_to(self, manifest: Manifest) -> Manifest:
        """Return a manifest with this dual homing."""
        policy = structs.replace(manifest.policy, dual_homing=self.dual_homing)
        return structs.replace(manifest, policy=policy)

    def last_members(self) -> LastMembers:
        """Return the members of which a majority has to be seen before anybody moves."""
        return LastMembers() if self.moves else NeverEnough()


FULL = Design()


class NeverEnough(LastMembers):
    """No view has a majority, so nobody is called and nobody moves."""

    def has_majority(self, members: Collection[PeerId]) -> bool:
        """Tell that it has none."""
        return False
