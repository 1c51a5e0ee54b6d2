"""JSON objects that are kept as text until a value is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=dict).encode


class JsonText(Mapping[str, Any]):
    """A JSON object by its text, which takes a quarter of the memory; decoded when a value is needed."""

    __slots__ = ("_text", "_value")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, text: str) -> None:
        self._text = text
        self._value: dict[str, Any] | None = None

    @property
    def _decoded(self) -> dict[str, Any]:
        if self._value is None:
            self._value = json.loads(self._text)
        return self._value

    def __getitem__(self, name: str) -> Any:
        return self._decoded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded)

    def __len__(self) -> int:
        return len(self._decoded)

    def __eq__(self, other: object) -> bool:
        # Usual, and faster than to decode it.
        if isinstance(other, JsonText):
            if other._text == self._text:
                return True
        elif isinstance(other, dict) and _encode(other) == self._text:
            return True
        return isinstance(other, Mapping) and self._decoded == decoded(other)

    def __str__(self) -> str:
        return self._text


def json_text(value: Mapping[str, Any]) -> str:
    """Return an object as JSON with its characters as they are."""
    return str(value) if isinstance(value, JsonText) else _encode(value)


def decoded(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object as a dict, which the JSON encoder takes."""
    return value._decoded if isinstance(value, JsonText) else dict(value)
