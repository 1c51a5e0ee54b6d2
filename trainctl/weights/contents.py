"""Compare two revisions of weights by their files, keys of JSON files, and tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from trainctl.base.listing import SourceFile
from trainctl.errors import SourceError, TrainctlError
from trainctl.model.contents import ContentChange, ContentDiff, ContentGroup
from trainctl.model.specs.resource import WeightsSpec
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.hf import HubSource
from trainctl.weights.mirrors import SourceUpstream
from trainctl.weights.patterns import select
from trainctl.weights.resolution import plugin_errors
from trainctl.weights.safetensors import ReadFn, ReadLimit, tensor_changes

_SECONDS = 3.0
"""Time for reading JSON files, for tensors, and for the silence of a server."""
_SHARE, _MIN_BYTES = 1000, 2**20
"""Tensors are read in a thousandth of the bytes, or 1 MiB if that is more."""
_JSON_BYTES = 64 * 2**20
_MOST_JSON, _MAX_NAMES = 20, 200
_KEYED = re.compile(
    r"(.*/)?(\w*config|tokenizer|special_tokens_map|chat_template)\.json|README\.md"
)
_LICENCE = re.compile(r"(licen[cs]e|copying|readme\.md)[^/]*", re.IGNORECASE)
_LICENCE_KEY = re.compile(r"^(license\w*):[ \t]*(.+?)[ \t]*$", re.MULTILINE)
_ALERTS = {
    "Python code": re.compile(r".*\.py"),
    "pickle": re.compile(r".*\.(bin|pt|pth|ckpt|pkl|pickle|joblib)", re.IGNORECASE),
    "chat template": re.compile(r"(.*/)?chat_template\..*|.*\.jinja|.*:.*\bchat_template"),
    "licence": re.compile(r"(licen[cs]e|copying)[^/:]*|README\.md: license.*", re.IGNORECASE),
}
"""Files, and keys after the name of their file."""
_MAX_TEXT = 60
_ABSENT = object()

Versions = Mapping[str, tuple[int, str | None]]
"""Size, and digest if known, by path."""


def compare_revisions(
    diff: ContentDiff, specs: Sequence[WeightsSpec], credential: SourceCredential | None
) -> ContentDiff:
    """Compare two commits of a repository on a Hub, of the old and the new spec; failures are notes."""
    uri, notes = specs[1].source, list[str]()
    groups: list[ContentGroup] = []
    changed: list[ContentChange] = []
    with _noted(notes, uri):
        source = HubSource(read_timeout=_SECONDS)
        listed = [source.resolve(uri, commit, credential) for commit in (diff.before, diff.after)]
        reads = [partial(_read, SourceUpstream(source, each, credential)) for each in listed]
        sides: list[dict[str, SourceFile]] = []
        for files, spec in zip((each.files for each in listed), specs, strict=True):
            chosen = select(files, spec.allow_patterns or None, spec.ignore_patterns)[0]
            licences = (file for file in files if _LICENCE.fullmatch(file.path))
            sides.append({file.path: file for file in (*chosen, *licences)})
        with _noted(notes, uri):
            commits = source.commits(listed[1], diff.before, credential)
            rows = [ContentChange(title, None, commit) for commit, title in commits]
            groups.append(ContentGroup.of("commits", rows))
        old, new = ({f.path: (f.size, f.validator) for f in side.values()} for side in sides)
        changed = file_changes(old, new)
        groups.append(ContentGroup.of("files", changed))
        load = partial(_values, ReadLimit(_JSON_BYTES, _SECONDS))
        for name in [row.name for row in changed if _KEYED.fullmatch(row.name)][:_MOST_JSON]:
            with _noted(notes, name):
                values = map(load, reads, (side.get(name) for side in sides))
                groups.append(ContentGroup.of(name, _differences((), *values)))
                keys = groups[-1].changes
                changed += [replace(key, name=f"{name}: {key.name}") for key in keys]
        limit = ReadLimit(max(listed[1].size // _SHARE, _MIN_BYTES), _SECONDS)
        tensors, problems = tensor_changes(reads, [[*side.values()] for side in sides], limit)
        groups.append(tensors)
        notes += problems
    shown = tuple(group for group in groups if group.changes)
    return replace(diff, groups=shown, alerts=_alerts(changed), notes=tuple(notes))


def _read(upstream: SourceUpstream, file: SourceFile, offset: int, length: int) -> bytes:
    data = bytearray(length)
    if length:
        with upstream.read_range(file, offset, length) as fill:
            if fill is None:
                raise SourceError(f"{file.path}: the server does not support ranges")
            fill(memoryview(data))
    return bytes(data)


def _values(limit: ReadLimit, read: ReadFn, file: SourceFile | None) -> Any:
    """Return a JSON file, or the licence in the metadata of a README."""
    text = limit.read(read, file, 0, file.size).decode() if file else "{}"
    if text.startswith("---"):
        return dict(_LICENCE_KEY.findall(text.split("\n---")[0]))
    return json.loads(text) if not file or file.path.endswith(".json") else {}


@contextmanager
def _noted(notes: list[str], subject: str) -> Iterator[None]:
    try:
        with plugin_errors(subject):
            yield
    except TrainctlError as error:
        notes.append(error.summary)


def file_changes(old: Versions, new: Versions) -> list[ContentChange]:
    """Compare files by size, and by digest if both are known."""
    rows = []
    for path in sorted({*old, *new}):
        (before, was), (after, digest) = (side.get(path, (None, None)) for side in (old, new))
        if before != after or (was and digest and was != digest):
            rows.append(ContentChange(path, before, after))
    return rows


def _alerts(changes: Iterable[ContentChange]) -> dict[str, str]:
    """Return the first names of changes that need attention, by sort."""
    alerts: dict[str, str] = {}
    for row in changes:
        for what, pattern in _ALERTS.items():
            if pattern.fullmatch(row.name) and (row.after is not None or what == "licence"):
                key = f"{row.how} {what}"
                name = f"{row.name} {row.before} -> {row.after}" if ":" in row.name else row.name
                others = f"{alerts[key]}, " if key in alerts else ""
                alerts[key] = others + name if len(others) < _MAX_NAMES else alerts[key]
    return alerts


def _differences(path: tuple[str, ...], before: Any, after: Any) -> Iterator[ContentChange]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            values = before.get(key, _ABSENT), after.get(key, _ABSENT)
            yield from _differences((*path, key), *values)
    elif before != after or type(before) is not type(after):
        yield ContentChange(".".join(path), _text(before), _text(after))


def _text(value: Any) -> str | None:
    if value is _ABSENT:
        return None
    if isinstance(value, list | dict) and len(value) > 4:
        return f"{len(value)} entries"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
