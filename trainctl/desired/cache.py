"""Cache of the desired state of unchanged manifests; see DESIGN.md, "Memory"."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import trainctl
from trainctl.base.json import JsonValue, canonical
from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.desired.values import DesiredState, desired_to_json
from trainctl.manifest.files import FileLines
from trainctl.model.address import Address
from trainctl.model.diagnostics import Position
from trainctl.model.json_codec import from_json, to_json
from trainctl.model.json_text import JsonText, json_text
from trainctl.model.specs.checks import DEFAULT_LIFECYCLE, JobLifecycle
from trainctl.model.specs.resource import DesiredResource

_PACKAGES = ("manifest", "desired", "model")
"""Packages of trainctl that determine how a manifest is read."""


_OTHER_SECTION = compile_lazily(rb"\n[^ \n#]")
_OTHER_LINE_END = compile_lazily(rb"\xc2\x85|\xe2\x80[\xa8\xa9]")


@dataclass(frozen=True, slots=True)
class ManifestCache:
    """Cache file of one manifest; read and write errors are ignored.

    ``key`` is a digest of all inputs of the desired state but the files, ``digests`` has theirs.
    """

    path: Path
    key: str
    digests: Mapping[str, str]
    directory: Path

    def load(self, files: Mapping[str, bytes], *, partly: bool = False) -> DesiredState | None:
        """Return the cached state; None if the inputs changed or code is missing.

        ``partly``: only the projects of those files, ``manifest_files``, that are the same and have nothing else.
        """
        try:
            with self.path.open(encoding="utf-8", newline="\n") as lines:
                entry = json.loads(next(lines))
                if entry["key"] != self.key or not (partly or entry["files"] == self.digests):
                    return None
                cached = replace(
                    from_json(DesiredState, entry["desired"]), directory=self.directory
                )
                if cached.extended is not None:
                    files = {**files, cached.extended.name: cached.extended.read()}
                same = {name for name, _ in entry["files"].items() & self.digests.items()}
                if partly:
                    same = {name for name in same if _has_only_projects(files[name])}
                texts = {name: FileLines(data, name) for name, data in files.items()}
                pairs = [
                    (_resource(row, line, texts), row[-1])
                    for row, line in zip(entry.pop("resources"), lines, strict=True)
                    if not partly or (row[-2] and row[-2][0] in same)
                ]
            desired = replace(
                cached,
                resources={resource.address: resource for resource, _ in pairs},
                digests={item.address: digest for item, digest in pairs} if partly else {},
                manifest_files=tuple(sorted(same)),
                secrets={
                    name: replace(secret, where=_at(entry["secrets"][name], texts))
                    for name, secret in cached.secrets.items()
                },
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
            return None
        code = {self.directory / job.job_spec.code.path for job in desired.jobs()}
        return desired if all(directory.is_dir() for directory in code) else None

    def store(self, desired: DesiredState) -> None:
        """Store the desired state, unless it has warnings."""
        if desired.warnings:
            return
        entry = {
            "key": self.key,
            "files": self.digests,
            "desired": desired_to_json(desired, ()),
            "secrets": {name: _place(secret.where) for name, secret in desired.secrets.items()},
            "resources": [_row(item, desired) for item in desired.resources.values()],
        }
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(0o700, parents=True, exist_ok=True)
            try:
                with os.fdopen(
                    os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
                ) as file:
                    file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
                    for item in desired.resources.values():
                        file.write(json_text(item.attributes).encode() + b"\n")
                temporary.replace(self.path)
            finally:
                temporary.unlink(missing_ok=True)


def _row(resource: DesiredResource, desired: DesiredState) -> list[Any]:
    """Return a resource without its attributes, as ``_resource`` reads it."""
    default = resource.lifecycle == DEFAULT_LIFECYCLE
    return [
        str(resource.address),
        resource.provider,
        [str(address) for address in resource.depends_on],
        None if default else to_json(resource.lifecycle),
        _place(resource.where),
        desired.digests.get(resource.address),
    ]


def _resource(row: list[Any], line: str, texts: Mapping[str, FileLines]) -> DesiredResource:
    address, provider, depends_on, lifecycle, place, _ = row
    if line[-1] != "\n" or "\0" in line:
        raise ValueError(line)  # cut by a loss of power
    return DesiredResource(
        Address.parse(address),
        sys.intern(provider),
        JsonText(line[:-1]),
        tuple(map(Address.parse, depends_on)),
        DEFAULT_LIFECYCLE if lifecycle is None else from_json(JobLifecycle, lifecycle),
        _at(place, texts),
    )


def _at(place: list[Any] | None, texts: Mapping[str, FileLines]) -> Position | None:
    if place is None:
        return None
    file, line, column, key_path = place
    return Position(sys.intern(file), line, column, key_path, texts.get(file))


def _has_only_projects(data: bytes) -> bool:
    """Whether a YAML file has only projects, without expressions; False if that isn't plain to see."""
    return (
        data.startswith(b"projects:\n")
        and (data.isascii() or _OTHER_LINE_END.search(data) is None)
        and not any(text in data for text in (b"${{", b"\\", b"\r"))
        and _OTHER_SECTION.search(data) is None
    )


def _place(where: Position | None) -> list[Any] | None:
    return [where.file, where.line, where.column, where.key_path] if where else None


def open_cache(
    cache_home: Path,
    directory: Path,
    files: Mapping[str, bytes],
    variables: Mapping[str, str],
    plugins: Sequence[tuple[str, str]],
) -> ManifestCache:
    """Return the cache of a manifest; ``plugins`` are pairs of provider and package."""
    from importlib.util import find_spec

    folders = [Path(root, name) for root in trainctl.__path__ for name in _PACKAGES]
    for spec in map(find_spec, sorted({package for _, package in plugins})):
        folders += map(Path, spec.submodule_search_locations or () if spec else ())
    inputs: JsonValue = {
        "python": sys.version,
        "program": [*_sources(folders)],
        "plugins": [list(plugin) for plugin in plugins],
        "directory": str(directory.resolve()),
        "variables": dict(variables),
    }
    name = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:32]
    key = hashlib.sha256(canonical(inputs)).hexdigest()
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return ManifestCache(cache_home / "manifests" / f"{name}.json", key, digests, directory)


def _sources(folders: Iterable[Path]) -> Iterator[list[str | int]]:
    """Yield name, size and mtime of each source file."""
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            status = path.stat()
            yield [str(path), status.st_size, status.st_mtime_ns]
