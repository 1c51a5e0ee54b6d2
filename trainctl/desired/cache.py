"""What an unchanged manifest asked for when it was last read, so that planning again costs what changed. See DESIGN.md, "Memory"."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trainctl
from trainctl.base.json import JsonValue, canonical
from trainctl.desired.values import DesiredState, desired_from_json, desired_to_json
from trainctl.manifest.files import lines_of
from trainctl.model.address import Kind
from trainctl.model.diagnostics import Position

_PACKAGES = ("manifest", "desired", "model")
"""Of this program, what a manifest's meaning depends on."""


@dataclass(frozen=True, slots=True)
class ManifestCache:
    """One manifest's wish in a file of the cache home. Whatever can't be read or written there is as if it weren't.

    ``key`` stands for everything that the wish was made from; ``directory`` is the manifest's, as it is called this time.
    """

    path: Path
    key: str
    directory: Path

    def load(self, files: Mapping[str, bytes]) -> DesiredState | None:
        """The wish, if it was made from the same; None if not, or if the directories of its code are gone."""
        try:
            found = json.loads(self.path.read_bytes())
            if found["key"] != self.key:
                return None
            desired_state = replace(desired_from_json(found["desired"]), directory=self.directory)
            desired = _placed(desired_state, found["places"], files)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return desired if all(one.is_dir() for one in _code(desired)) else None

    def keep(self, desired: DesiredState) -> None:
        """Remember the wish, unless there was something to warn of."""
        if desired.warnings:
            return
        desired_state = desired_to_json(desired, desired.resources)
        kept = {"key": self.key, "desired": desired_state, "places": _places(desired)}
        text = json.dumps(
            kept, separators=(",", ":")
        ).encode()  # in the order in which plans show attributes
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


def open_cache(
    cache_home: Path,
    directory: Path,
    files: Mapping[str, bytes],
    variables: Mapping[str, str],
    plugins: Sequence[tuple[str, str]],
) -> ManifestCache:
    """Where a manifest's wish is remembered. ``plugins`` are providers by name, with the package that each is in."""
    made_from: JsonValue = {
        "python": sys.version,
        "program": [
            *_sources(Path(root, room) for root in trainctl.__path__ for room in _PACKAGES),
            *_packages(package for _, package in plugins),
        ],
        "plugins": [list(plugin) for plugin in plugins],
        "directory": str(directory.resolve()),
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        "variables": dict(variables),
    }
    place = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:32]
    key = hashlib.sha256(canonical(made_from)).hexdigest()
    return ManifestCache(cache_home / "manifests" / f"{place}.json", key, directory)


def _packages(names: Iterable[str]) -> Iterator[list[str | int]]:
    from importlib.util import find_spec

    for name in sorted(set(names)):
        spec = find_spec(name)
        yield from _sources(map(Path, spec.submodule_search_locations or () if spec else ()))


def _sources(folders: Iterable[Path]) -> Iterator[list[str | int]]:
    """Name, size and time of each source file: a program that was changed may read a manifest otherwise."""
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            found = path.stat()
            yield [str(path), found.st_size, found.st_mtime_ns]


def _places(desired: DesiredState) -> dict[str, JsonValue]:
    resources = {
        str(resource.address): _place(resource.where) for resource in desired.resources.values()
    }
    secrets = {f"secret.{name}": _place(one.where) for name, one in desired.secrets.items()}
    return {**resources, **secrets}


def _place(where: Position | None) -> JsonValue:
    return [where.file, where.line, where.column, where.key_path] if where else None


def _placed(
    desired: DesiredState, places: Mapping[str, Any], files: Mapping[str, bytes]
) -> DesiredState:
    lines = {name: lines_of(data.decode(), name) for name, data in files.items()}

    def at(name: str) -> Position | None:
        if places[name] is None:
            return None
        file, line, column, key_path = places[name]
        return Position(file, line, column, key_path, lines.get(file))

    return replace(
        desired,
        resources={key: replace(one, where=at(str(key))) for key, one in desired.resources.items()},
        secrets={
            name: replace(one, where=at(f"secret.{name}")) for name, one in desired.secrets.items()
        },
    )


def _code(desired: DesiredState) -> set[Path]:
    jobs = (
        resource for resource in desired.resources.values() if resource.address.kind is Kind.JOB
    )
    return {desired.directory / job.job_spec.code.path for job in jobs}
