"""Reading all files of a manifest to one tree."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Mapping
from pathlib import Path

from trainctl.base.lazy_dataclass import dataclass
from trainctl.errors import ManifestError, StorageError
from trainctl.manifest.files import (
    ExtendedFile,
    Fetch,
    PinnedFile,
    UnreadableManifest,
    file_bytes,
    load,
    manifest_files,
    merge,
    unreadable,
)
from trainctl.manifest.text import parse_toml, parse_yaml, repeated_key_error
from trainctl.manifest.tree import ManifestNode, mapping_node
from trainctl.model.credentials import mask_credentials
from trainctl.model.diagnostics import Diagnostic, Position, error

_MAPPING_SECTIONS = frozenset(
    {"projects", "vars", "secrets", "clusters", "weights", "caches", "jobs"}
)
"""Sections that may be split over several files."""


@dataclass(frozen=True, slots=True)
class Documents:
    """All files of a manifest as one tree; ``problems`` are repeated names.

    ``shared``: section and name of what only the ``extended`` file declares.
    """

    directory: Path
    files: tuple[str, ...]
    root: ManifestNode
    problems: tuple[Diagnostic, ...] = ()
    extended: ExtendedFile | None = None
    shared: frozenset[tuple[str, str]] = frozenset()


def no_fetch(_: PinnedFile) -> Path:
    """Refuse to fetch an extended file."""
    raise StorageError("the extended file is not fetched", "Run trainctl plan.")


def read(
    directory: Path,
    known: Mapping[str, bytes] | None = None,
    fetch: Fetch = no_fetch,
    skipped: Collection[str] = (),
) -> Documents:
    """Read all manifest files of a directory but ``skipped`` ones; raise ManifestError if any is invalid.

    ``known``: content of the files by name if read before. ``fetch`` copies an extended file of another repository.
    """
    names = manifest_files(directory) if known is None else sorted(known)
    if not names:
        raise ManifestError(
            (
                error(
                    "no manifest found",
                    f"{directory} has no trainctl.yaml, trainctl.toml or *.trainctl.yaml. Run trainctl init, or use -C to name another directory.",
                    where=Position(str(directory)),
                    code="manifest-not-found",
                ),
            )
        )
    problems: list[Diagnostic] = []
    unreadable: list[Diagnostic] = []
    roots: list[ManifestNode] = []
    for name in names:
        if name in skipped:
            continue
        try:
            data = file_bytes(directory / name, name) if known is None else known[name]
            roots.append(parse_mapping(data, name, problems))
        except UnreadableManifest as stop:
            unreadable.append(stop.diagnostic)
    nothing = mapping_node({}, {}, Position(names[0])) if skipped else None
    root = _merge(roots, problems) if roots else nothing
    extended, shared = None, frozenset[tuple[str, str]]()
    if root is not None and not unreadable and (reference := root.entries.get("extends")):
        try:
            extended, data = load(reference, directory, fetch)
            root, shared = merge(root, parse_mapping(data, extended.name, problems), problems)
        except UnreadableManifest as stop:
            unreadable.append(stop.diagnostic)
    if unreadable or root is None:
        raise ManifestError(tuple(map(mask_credentials, (*unreadable, *problems))))
    return Documents(directory, tuple(names), root, tuple(problems), extended, shared)


def read_mapping(path: Path, name: str, problems: list[Diagnostic]) -> ManifestNode:
    """Read a file, called ``name`` in positions; raise UnreadableManifest on failure."""
    return parse_mapping(file_bytes(path, name), name, problems)


def parse_mapping(data: bytes, name: str, problems: list[Diagnostic]) -> ManifestNode:
    """Parse a file, called ``name`` in positions; raise UnreadableManifest if it is invalid."""
    parse = parse_toml if name.endswith(".toml") else parse_yaml
    root = parse(_decode(data, name), name, problems)
    if root is None:
        raise unreadable(
            "the file is empty",
            "Delete it, or add a section.",
            where=Position(name, 1, 1),
            code="empty-file",
        )
    if not isinstance(root.value, dict):
        raise unreadable(
            "expected a mapping at the top level",
            "Start with a section, for example 'jobs:'.",
            where=root.where,
            code="not-a-mapping",
        )
    return root


def _decode(data: bytes, name: str) -> str:
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as problem:
        before = data[: problem.start]
        column = len(before[before.rfind(b"\n") + 1 :].decode()) + 1
        raise unreadable(
            "not UTF-8 text",
            f"Byte 0x{data[problem.start]:02x} is not UTF-8. Save the file as UTF-8.",
            where=Position(name, before.count(b"\n") + 1, column),
            code="bad-encoding",
        ) from None


def _merge(roots: list[ManifestNode], problems: list[Diagnostic]) -> ManifestNode:
    entries: dict[str, ManifestNode] = {}
    keys: dict[str, Position] = {}
    for root in roots:
        for name, section in root.entries.items():
            where = root.key_position(name)
            first = entries.get(name)
            if first is None:
                entries[name], keys[name] = section, where
            elif name in _MAPPING_SECTIONS and {type(first.value), type(section.value)} == {dict}:
                problems += [
                    repeated_key_error(key, first.key_position(key), section.key_position(key))
                    for key in section.entries
                    if key in first.entries
                ]
                both = {**section.entries, **first.entries}
                entries[name] = mapping_node(both, {**section.keys, **first.keys}, first.where)
            elif name != "version" or first.value != section.value:
                problems.append(repeated_key_error(name, keys[name], where))
    return mapping_node(entries, keys, roots[0].where)
