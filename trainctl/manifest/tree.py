"""The tree that manifest text is read into: values that know where they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from trainctl.model.diagnostics import Position

MAX_DEPTH = 64
MAX_NODES = 250_000
"""Nodes of one file after aliases are followed; every 100 characters of text count as one more."""

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indexes from the root of the manifest to a value."""

Scalar: TypeAlias = str | int | float | bool | None


class SourceFloat(float):
    """A number that remembers how it was written, for where it becomes text."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> SourceFloat:
        """Of its spelling; ValueError if that is no number."""
        self = super().__new__(cls, text)
        self.text = text
        return self

    def __reduce__(self) -> tuple[type[SourceFloat], tuple[str]]:
        return (SourceFloat, (self.text,))


_NO_KEYS: Mapping[str, Position] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class ManifestNode:
    """One value and where it stands. Shared by aliases, so never changed after it was made.

    ``keys`` says where each key of a mapping stands; ``size`` counts the nodes below, ``height`` their levels.
    """

    value: Scalar | list[ManifestNode] | dict[str, ManifestNode]
    where: Position
    keys: Mapping[str, Position] = field(default_factory=dict)
    size: int = 1
    height: int = 1

    @property
    def entries(self) -> dict[str, ManifestNode]:
        """The entries of a mapping; none if this is not one."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[ManifestNode]:
        """The items of a list; none if this is not one."""
        return self.value if isinstance(self.value, list) else []

    def key_position(self, key: str) -> Position:
        """Where a key of this mapping stands."""
        return self.keys.get(key, self.where)


def scalar_node(value: Scalar, where: Position) -> ManifestNode:
    """A leaf."""
    return ManifestNode(
        value, where, _NO_KEYS, size=1 + (len(value) // 100 if isinstance(value, str) else 0)
    )


def list_node(items: list[ManifestNode], where: Position) -> ManifestNode:
    """A list of nodes."""
    height = 1 + max((item.height for item in items), default=0)
    return ManifestNode(
        items, where, _NO_KEYS, size=1 + sum(item.size for item in items), height=height
    )


def mapping_node(
    entries: dict[str, ManifestNode], keys: Mapping[str, Position], where: Position
) -> ManifestNode:
    """A mapping of nodes."""
    height = 1 + max((entry.height for entry in entries.values()), default=0)
    size = 1 + sum(1 + entry.size for entry in entries.values())
    return ManifestNode(entries, where, keys, size=size, height=height)


def to_plain(node: ManifestNode) -> Any:
    """The values alone; floats keep their spelling."""
    if isinstance(node.value, dict):
        return {key: to_plain(entry) for key, entry in node.value.items()}
    if isinstance(node.value, list):
        return [to_plain(item) for item in node.value]
    return node.value


def child(node: ManifestNode, step: str | int) -> ManifestNode | None:
    """The node one step below, if there is one."""
    if isinstance(step, str):
        return node.entries.get(step)
    return node.items[step] if 0 <= step < len(node.items) else None


def position_of(root: ManifestNode, path: Path) -> Position:
    """Where the value at a path stands, or the nearest thing above it that exists; of a mapping where its key does."""
    node, where = root, root.where
    for step in path:
        below = child(node, step)
        if below is None:
            break
        where = node.key_position(step) if isinstance(step, str) and below.entries else below.where
        node = below
    return where


def with_edits(root: ManifestNode, edits: Mapping[Path, ManifestNode | None]) -> ManifestNode:
    """The tree with other values at some paths, or none (None). Only what lies above them is copied."""
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
