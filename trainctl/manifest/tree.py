"""Tree of a manifest: values with their positions in the files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.model.diagnostics import Position

MAX_DEPTH = 64
MAX_NODES = 250_000
"""Limit for one file, after expansion of aliases; every 100 characters of text count as a node."""

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indexes from the root to a value."""

Scalar: TypeAlias = str | int | float | bool | None


class SourceFloat(float):
    """A float that keeps its spelling, for its conversion to text."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> SourceFloat:
        """Create from the spelling; raise ValueError if it isn't a number."""
        self = super().__new__(cls, text)
        self.text = text
        return self

    def __reduce__(self) -> tuple[type[SourceFloat], tuple[str]]:
        return (SourceFloat, (self.text,))


_NO_KEYS: Mapping[str, Position] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class ManifestNode:
    """A value with its position. Immutable, because aliases share nodes.

    ``keys`` has the positions of a mapping's keys; ``size`` counts the nodes below, ``height`` their levels.
    """

    value: Scalar | list[ManifestNode] | dict[str, ManifestNode]
    where: Position
    keys: Mapping[str, Position] = field(default_factory=dict)
    size: int = 1
    height: int = 1

    @property
    def entries(self) -> dict[str, ManifestNode]:
        """Entries of a mapping, empty for other values."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[ManifestNode]:
        """Items of a list, empty for other values."""
        return self.value if isinstance(self.value, list) else []

    def key_position(self, key: str) -> Position:
        """Return the position of a key of this mapping."""
        return self.keys.get(key, self.where)


def scalar_node(value: Scalar, where: Position) -> ManifestNode:
    """Create a scalar."""
    size = 1 + len(value) // 100 if type(value) is str else 1
    return ManifestNode(value, where, _NO_KEYS, size)


def list_node(items: list[ManifestNode], where: Position) -> ManifestNode:
    """Create a list."""
    height = 1 + max((item.height for item in items), default=0)
    return ManifestNode(
        items, where, _NO_KEYS, size=1 + sum(item.size for item in items), height=height
    )


def mapping_node(
    entries: dict[str, ManifestNode], keys: Mapping[str, Position], where: Position
) -> ManifestNode:
    """Create a mapping."""
    height, size = 0, 1 + len(entries)
    for entry in entries.values():
        size += entry.size
        if entry.height > height:
            height = entry.height
    return ManifestNode(entries, where, keys, size, height + 1)


def to_plain(node: ManifestNode) -> Any:
    """Return the values without positions; floats keep their spelling."""
    if isinstance(node.value, dict):
        return {
            key: to_plain(entry) if isinstance(entry.value, dict | list) else entry.value
            for key, entry in node.value.items()
        }
    if isinstance(node.value, list):
        return [to_plain(item) for item in node.value]
    return node.value


def child(node: ManifestNode, step: str | int) -> ManifestNode | None:
    """Return the node one step below, None if there is none."""
    if isinstance(step, str):
        return node.entries.get(step)
    return node.items[step] if 0 <= step < len(node.items) else None


def node_at(root: ManifestNode, path: Path) -> ManifestNode | None:
    """Return the node at a path, None if there is none."""
    node: ManifestNode | None = root
    for step in path:
        node = child(node, step) if node is not None else None
    return node


def position_of(root: ManifestNode, path: Path) -> Position:
    """Return the position of the value at a path, or of its nearest existing parent.

    The position of a mapping is that of its key.
    """
    node, where = root, root.where
    for step in path:
        below = child(node, step)
        if below is None:
            break
        where = node.key_position(step) if isinstance(step, str) and below.entries else below.where
        node = below
    return where


def with_edits(root: ManifestNode, edits: Mapping[Path, ManifestNode | None]) -> ManifestNode:
    """Return the tree with values replaced at some paths, or removed (None)."""
    below: dict[str | int, dict[Path, ManifestNode | None]] = {}
    for path, node in edits.items():
        below.setdefault(path[0], {})[path[1:]] = node
    if isinstance(root.value, dict):
        entries = dict(root.value)
        for step, rests in below.items():
            _put(entries, str(step), rests, root)
        return mapping_node(entries, root.keys, root.where)
    if isinstance(root.value, list):
        items: dict[int, ManifestNode] = dict(enumerate(root.value))
        for step, rests in below.items():
            _put(items, int(step), rests, root)
        return list_node(list(items.values()), root.where)
    return root


_Step = TypeVar("_Step", int, str)


def _put(
    entries: dict[_Step, ManifestNode],
    step: _Step,
    rests: Mapping[Path, ManifestNode | None],
    parent: ManifestNode,
) -> None:
    if () in rests:
        node = rests[()]
        if node is None:
            entries.pop(step, None)
        else:
            entries[step] = node
    else:
        entries[step] = with_edits(entries.get(step, mapping_node({}, {}, parent.where)), rests)


_WORDS: Mapping[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER_STARTS = frozenset("+-.0123456789")
_INT = compile_lazily(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = compile_lazily(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = compile_lazily(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_UNENCODABLE = compile_lazily("[\x00\ud800-\udfff]")
_MAX_DIGITS = 400


def resolve_scalar(text: str) -> Scalar:
    """Convert an unquoted word to its value; raise ValueError if invalid."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_STARTS:
        return require_encodable(text)
    if _INT.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text):
        return parse_finite(text)
    if _NOT_FINITE.fullmatch(text):
        raise ValueError("infinity and NaN are not allowed in a manifest")
    return require_encodable(text)


def parse_finite(text: str) -> SourceFloat:
    """Parse a float, keeping its spelling; raise ValueError unless finite."""
    number = SourceFloat(text)
    if not math.isfinite(number):
        raise ValueError(
            "infinity, NaN and numbers that are too large are not allowed in a manifest"
        )
    return number


def require_encodable(text: str) -> str:
    """Return the text; raise ValueError if it contains NUL or lone surrogates."""
    if not text.isprintable() and _UNENCODABLE.search(text):
        raise ValueError("text can't contain NUL or lone surrogates")
    return text


def scalar_text(value: Scalar) -> str:
    """Format a scalar, floats as they were written."""
    if isinstance(value, SourceFloat):
        return value.text
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"an integer can have at most {_MAX_DIGITS} digits")
    if text.startswith(("0o", "0x")):
        return int(text, 0)
    return int(text)
