"""Finding the files of a manifest and making one tree of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trainctl.errors import ManifestError, StorageError
from trainctl.manifest.tokens import masked
from trainctl.manifest.toml_text import parse_toml
from trainctl.manifest.tree import MAX_FILE_BYTES, Node, Unreadable, mapping_node
from trainctl.manifest.yaml_text import parse_yaml, repeated
from trainctl.model.diagnostics import Diagnostic, Position, error

_FILE = re.compile(r"(?:.+\.)?trainctl\.(?:yaml|yml|toml)")
_NAMED = frozenset({"projects", "vars", "secrets", "clusters", "weights", "caches", "jobs"})
"""Sections that hold names: files may each give some of them."""


@dataclass(frozen=True, slots=True)
class Documents:
    """All files of one manifest as one tree.

    ``files`` are names relative to the directory; ``problems`` are what is wrong already, names given twice.
    """

    directory: Path
    files: tuple[str, ...]
    root: Node
    problems: tuple[Diagnostic, ...] = ()


def read(directory: Path) -> Documents:
    """Read every manifest file of a directory. ManifestError holds what is wrong with each that can't be read."""
    names = _names(directory)
    if not names:
        raise ManifestError(
            (
                error(
                    "no manifest here",
                    f"{directory} has no trainctl.yaml, trainctl.toml or *.trainctl.yaml. "
                    "Write one, or name another directory with -C.",
                    where=Position(str(directory)),
                    code="no-manifest",
                ),
            )
        )
    problems: list[Diagnostic] = []
    unreadable: list[Diagnostic] = []
    roots: list[Node] = []
    for name in names:
        try:
            roots.append(read_mapping(directory / name, name, problems))
        except Unreadable as stop:
            unreadable.append(stop.diagnostic)
    if unreadable:
        raise ManifestError(tuple(masked(one) for one in (*unreadable, *problems)))
    root = _merge(roots, problems)
    return Documents(directory, tuple(names), root, tuple(problems))


def read_mapping(path: Path, name: str, problems: list[Diagnostic]) -> Node:
    """One file's mapping, ``name`` being what positions call it; Unreadable says why there is none."""
    text = _decode(_bytes(path, name), name)
    parse = parse_toml if path.suffix == ".toml" else parse_yaml
    root = parse(text, name, problems)
    if root is None:
        raise Unreadable(
            error(
                "the file is empty",
                "Remove it, or declare something.",
                where=Position(name, 1, 1),
                code="empty-file",
            )
        )
    if not isinstance(root.value, dict):
        raise Unreadable(
            error(
                "a manifest is a mapping",
                "Begin with a section, for example 'jobs:'.",
                where=root.where,
                code="not-a-mapping",
            )
        )
    return root


def _names(directory: Path) -> list[str]:
    try:
        found = [entry.name for entry in directory.iterdir() if entry.is_file()]
    except OSError as problem:
        raise StorageError(f"can't read the directory {directory}: {problem.strerror}") from problem
    return sorted(name for name in found if _FILE.fullmatch(name))


def _bytes(path: Path, name: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as problem:
        raise Unreadable(
            error(
                f"can't be read: {problem.strerror}", where=Position(name), code="unreadable-file"
            )
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise Unreadable(
            error(
                "the file is larger than 1 MiB",
                "Split it into several NAME.trainctl.yaml.",
                where=Position(name),
                code="file-too-large",
            )
        )
    return data


def _decode(data: bytes, name: str) -> str:
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise Unreadable(
            error(
                "the file begins with a byte order mark",
                "Save it as UTF-8 without BOM.",
                where=Position(name, 1, 1),
                code="bad-encoding",
            )
        )
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        before = data[: problem.start]
        column = len(before[before.rfind(b"\n") + 1 :].decode()) + 1
        raise Unreadable(
            error(
                "not UTF-8 text",
                f"Byte 0x{data[problem.start]:02x} is not UTF-8. Save the file as UTF-8.",
                where=Position(name, before.count(b"\n") + 1, column),
                code="bad-encoding",
            )
        ) from None


def _merge(roots: list[Node], problems: list[Diagnostic]) -> Node:
    entries: dict[str, Node] = {}
    keys: dict[str, Position] = {}
    for root in roots:
        for name, section in root.entries.items():
            where = root.key_place(name)
            first = entries.get(name)
            if first is None:
                entries[name], keys[name] = section, where
            elif name in _NAMED and {type(first.value), type(section.value)} == {dict}:
                entries[name] = _joined(first, section, problems)
            elif name != "version" or first.value != section.value:
                problems.append(repeated(name, keys[name], where))
    return mapping_node(entries, keys, roots[0].where)


def _joined(first: Node, second: Node, problems: list[Diagnostic]) -> Node:
    problems += [
        repeated(name, first.key_place(name), second.key_place(name))
        for name in second.entries
        if name in first.entries
    ]
    entries = {**second.entries, **first.entries}
    return mapping_node(entries, {**second.keys, **first.keys}, first.where)
