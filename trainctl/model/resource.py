"""One declared thing, with every default filled in and every reference resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainctl.base.json import JsonObject
from trainctl.model.address import Address
from trainctl.model.diagnostics import Position


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """How a resource answers to changes; kept in the state so that it outlives its block."""

    prevent_destroy: bool = False
    ignore_changes: tuple[str, ...] = ()
    rerun_on: tuple[str, ...] = ("config",)

    def to_json(self) -> dict[str, JsonObject | bool | list[str]]:
        """The form kept in the state."""
        return {
            "prevent_destroy": self.prevent_destroy,
            "ignore_changes": list(self.ignore_changes),
            "rerun_on": list(self.rerun_on),
        }


@dataclass(frozen=True, slots=True)
class Resource:
    """A desired resource. ``attributes`` are its values as plans show them; DESIGN.md of ``desired`` lists them."""

    address: Address
    provider: str
    attributes: Mapping[str, Any]
    depends_on: tuple[Address, ...] = ()
    lifecycle: Lifecycle = Lifecycle()
    where: Position | None = field(default=None, compare=False)
