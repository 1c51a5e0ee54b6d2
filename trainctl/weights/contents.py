"""Compare two revisions of weights by their files, keys of JSON files, and tensors."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from trainctl.base.lazy_dataclass import replace
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.listing import SourceFile
from trainctl.errors import SourceError, TrainctlError
from trainctl.model.contents import ContentChange, ContentDiff, ContentGroup
from trainctl.model.specs.resource import WeightsSpec
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.hf import HubSource
from trainctl.weights.mirrors import SourceUpstream
from trainctl.weights.patterns import select
from trainctl.weights.resolution import plugin_errors

ReadFn = Callable[[SourceFile, int, int], bytes]
"""Read a range of a file: offset and length in bytes."""
Tensors = dict[str, str]
"""Type and shape by name."""

_FIRST_BYTES = 16 * 2**10
"""Length of the first request, which holds most headers."""
_SUFFIX, _PARALLEL = ".safetensors", 32
_NUMBER = compile_lazily(r"\b\d+\b")
_MAX_TENSOR_TEXT = 200
_SECONDS = 3.0
"""Time for reading JSON files, for tensors, and for the silence of a server."""
_SHARE, _MIN_BYTES = 1000, 2**20
"""Tensors are read in a thousandth of the bytes, or 1 MiB if that is more."""
_JSON_BYTES = 64 * 2**20
_MOST_JSON, _MAX_NAMES = 20, 200
_KEYED = compile_lazily(
    r"(.*/)?(\w*config|tokenizer|special_tokens_map|chat_template)\.json|README\.md"
)
_LICENCE = compile_lazily(r"(licen[cs]e|copying|readme\.md)[^/]*", re.IGNORECASE)
_LICENCE_KEY = compile_lazily(r"^(license\w*):[ \t]*(.+?)[ \t]*$", re.MULTILINE)
_ALERTS = {
    "Python code": compile_lazily(r".*\.py"),
    "pickle": compile_lazily(r".*\.(bin|pt|pth|ckpt|pkl|pickle|joblib)", re.IGNORECASE),
    "chat template": compile_lazily(r"(.*/)?chat_template\..*|.*\.jinja|.*:.*\bchat_template"),
    "licence": compile_lazily(r"(licen[cs]e|copying)[^/:]*|README\.md: license.*", re.IGNORECASE),
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


class ReadLimit:
    """Bytes and seconds that may be spent on reading; thread-safe."""

    def __init__(self, size: int, seconds: float) -> None:
        self._left, self._end = size, time.monotonic() + seconds
        self._lock = threading.Lock()

    def read(self, read: ReadFn, file: SourceFile, offset: int, length: int) -> bytes:
        """Read a range; SourceError if it is over the limit."""
        with self._lock:
            if length > self._left or time.monotonic() > self._end:
                raise SourceError(f"{file.path}: over the limit of bytes or time")
            self._left -= length
        return read(file, offset, length)


def tensor_changes(
    reads: Sequence[ReadFn], files: Sequence[Sequence[SourceFile]], limit: ReadLimit
) -> tuple[ContentGroup, list[str]]:
    """Return the changes between two revisions, and notes about files that were not read.

    Files that both have are not read.
    """
    known = [{file.validator for file in side} for side in files]
    different = [
        [file for file in side if file.validator not in others]
        for side, others in zip(files, reversed(known), strict=True)
    ]
    notes: list[str] = []
    failures: list[str] = []

    def load(read: ReadFn, file: SourceFile) -> Tensors:
        folder = "".join(file.path.rpartition("/")[:2])
        try:
            header = _read_header(read, file, limit)
            return {f"{folder}{name}": text for name, text in header.items()}
        except SourceError as error:
            failures.append(error.summary)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            failures.append(f"{file.path} is not valid")
        return {}

    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="tensors") as pool:
        reading = [
            [pool.submit(load, read, file) for file in side if file.path.endswith(_SUFFIX)]
            for read, side in zip(reads, different, strict=True)
        ]
    old, new = ({k: v for future in side for k, v in future.result().items()} for side in reading)
    if failures:
        notes.append(f"tensors of {len(failures)} files were not read: {failures[0]}")
        old, new = ({name: side[name] for name in old.keys() & new.keys()} for side in (old, new))
    return ContentGroup.of("tensors", _tensor_rows(old, new), _tensor_kind), notes


def _read_header(read: ReadFn, file: SourceFile, limit: ReadLimit) -> Tensors:
    """Format: https://huggingface.co/docs/safetensors."""
    first = min(_FIRST_BYTES, file.size)
    data = limit.read(read, file, 0, first)
    end = min(8 + int.from_bytes(data[:8], "little"), file.size)
    if end > first:
        data += limit.read(read, file, first, end - first)
    rows = json.loads(data[8:end]).items()
    return {
        name: f"{row['dtype']} {row['shape']}"[:_MAX_TENSOR_TEXT]
        for name, row in rows
        if name != "__metadata__"
    }


def _tensor_rows(old: Tensors, new: Tensors) -> list[ContentChange]:
    """Return changes; equal ones of numbered layers are one."""
    groups: dict[tuple[str, str | None, str | None], list[str]] = {}
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before != after:
            groups.setdefault((_NUMBER.sub("*", name), before, after), []).append(name)
    rows = [
        ContentChange(
            (pattern if names[1:] else names[0])[:_MAX_TENSOR_TEXT], before, after, len(names)
        )
        for (pattern, before, after), names in groups.items()
    ]
    return sorted(rows, key=lambda row: -row.count)


def _tensor_kind(change: ContentChange) -> str:
    types = [str(text).partition(" ")[0] for text in (change.before, change.after)]
    how = "retyped" if types[0] != types[1] else "reshaped"
    return {"removed": "gone", "changed": how}.get(change.how, change.how)
