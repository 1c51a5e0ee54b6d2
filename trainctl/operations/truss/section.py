"""Sections of a dump; fields that a conversion doesn't take are noted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainctl.model.imported_manifest import ImportedManifest, ImportOutcome


@dataclass(slots=True)
class ConfigSection:
    """A section of a dump; ``rest`` are the fields that were not taken yet."""

    name: str
    rest: dict[str, Any]

    @classmethod
    def of(cls, name: str, value: object) -> ConfigSection:
        """Copy a mapping; another value has no fields."""
        return cls(name, dict(value) if isinstance(value, Mapping) else {})

    def take(self, key: str, default: Any = None) -> Any:
        """Take the value of a field, the default if it is missing or None."""
        value = self.rest.pop(key, None)
        return default if value is None else value

    def section(self, key: str) -> ConfigSection:
        """Take a mapping."""
        return ConfigSection.of(f"{self.name}.{key}".lstrip("."), self.rest.pop(key, None))

    def finish(self, result: ImportedManifest) -> None:
        """Note the fields that were not taken: those of later versions of the SDK."""
        for key, value in self.rest.items():
            if value not in (None, [], {}, False):
                text = "trainctl doesn't know the field."
                result.note(ImportOutcome.MISSING, f"{self.name}.{key}".lstrip("."), text)
