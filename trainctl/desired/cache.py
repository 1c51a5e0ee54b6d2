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


@dataclass(frozen=True, slots=True)
class ManifestCache:
    """Cache file of one manifest; read and write errors are ignored.

    ``key`` is a digest of all inputs of the desired state.
    """

    path: Path
    key: str
    directory: Path

    def load(self, files: Mapping[str, bytes]) -> DesiredState | None:
        """Return the cached state; None if the inputs changed or code is missing."""
        try:
            first, *attributes, end = self.path.read_text("utf-8").split("\n")
            entry = json.loads(first)
            if entry["key"] != self.key or end or any("\0" in text for text in attributes):
                return None  # or cut by a loss of power
            del first  # memory peaks below
            rows = entry.pop("resources")
            cached = replace(from_json(DesiredState, entry["desired"]), directory=self.directory)
            if cached.extended is not None:
                files = {**files, cached.extended.name: cached.extended.read()}
            lines = {name: FileLines(data, name) for name, data in files.items()}

            def at(place: list[Any] | None) -> Position | None:
                if place is None:
                    return None
                file, line, column, key_path = place
                return Position(sys.intern(file), line, column, key_path, lines.get(file))

            resources = (
                _resource(row, JsonText(values), at(row[-1]))
                for row, values in zip(rows, attributes, strict=True)
            )
            desired = replace(
                cached,
                resources={resource.address: resource for resource in resources},
                secrets={
                    name: replace(secret, where=at(entry["secrets"][name]))
                    for name, secret in cached.secrets.items()
                },
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        code = {self.directory / job.job_spec.code.path for job in desired.jobs()}
        return desired if all(directory.is_dir() for directory in code) else None

    def store(self, desired: DesiredState) -> None:
        """Store the desired state, unless it has warnings."""
        if desired.warnings:
            return
        entry = {
            "key": self.key,
            "desired": desired_to_json(desired, ()),
            "secrets": {name: _place(secret.where) for name, secret in desired.secrets.items()},
            "resources": [*map(_row, desired.resources.values())],
        }
        attributes = (json_text(item.attributes) for item in desired.resources.values())
        text = "\n".join([json.dumps(entry, separators=(",", ":")), *attributes, ""]).encode()
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(0o700, parents=True, exist_ok=True)
            try:
                with os.fdopen(
                    os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
                ) as file:
                    file.write(text)
                temporary.replace(self.path)
            finally:
                temporary.unlink(missing_ok=True)


def _row(resource: DesiredResource) -> list[Any]:
    """Return a resource without its attributes, as ``_resource`` reads it."""
    default = resource.lifecycle == DEFAULT_LIFECYCLE
    return [
        str(resource.address),
        resource.provider,
        [str(address) for address in resource.depends_on],
        None if default else to_json(resource.lifecycle),
        _place(resource.where),
    ]


def _resource(row: list[Any], attributes: JsonText, where: Position | None) -> DesiredResource:
    address, provider, depends_on, lifecycle, _ = row
    return DesiredResource(
        Address.parse(address),
        sys.intern(provider),
        attributes,
        tuple(map(Address.parse, depends_on)),
        DEFAULT_LIFECYCLE if lifecycle is None else from_json(JobLifecycle, lifecycle),
        where,
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
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        "variables": dict(variables),
    }
    name = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:32]
    key = hashlib.sha256(canonical(inputs)).hexdigest()
    return ManifestCache(cache_home / "manifests" / f"{name}.json", key, directory)


def _sources(folders: Iterable[Path]) -> Iterator[list[str | int]]:
    """Yield name, size and mtime of each source file."""
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            status = path.stat()
            yield [str(path), status.st_size, status.st_mtime_ns]
