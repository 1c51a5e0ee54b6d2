"""Compare two revisions of weights by their files, keys of JSON files, and tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.errors import SourceError, TrainctlError
from trainctl.model.contents import ContentAlert, ContentChange, ContentDiff, ContentGroup
from trainctl.plugin_api.sources import ByteRange, SourceCredential
from trainctl.sources.hf import HubSource
from trainctl.weights.resolution import plugin_errors
from trainctl.weights.safetensors import ReadLimit, tensor_changes

_SECONDS = 3.0
"""Time for reading tensors, and for the silence of a server."""
_SHARE, _MIN_BYTES = 1000, 2**20
"""Tensors are read in a thousandth of the bytes, or 1 MiB if that is more."""
_JSON_BYTES = 16 * 2**20
_MOST_JSON, _MOST_NAMED = 20, 5
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

Select = Callable[[Sequence[SourceFile]], Sequence[SourceFile]]
Versions = Mapping[str, tuple[int, str | None]]
"""Size, and digest if known, by path."""


@dataclass(frozen=True)
class _Revision:
    """A revision on a Hub; ``files`` are those selected by patterns, and licences."""

    source: HubSource
    resolved: ResolvedSource
    files: Sequence[SourceFile]
    credential: SourceCredential | None

    def read(self, file: SourceFile, offset: int, length: int) -> bytes:
        data, span = bytearray(length), ByteRange(offset, length)
        if length:
            with self.source.read_range(self.resolved, file, span, self.credential) as fill:
                if fill is None:
                    raise SourceError(f"{file.path}: the server does not support ranges")
                fill(memoryview(data))
        return bytes(data)

    def values(self, path: str) -> Any:
        """Return a JSON file, or the licence in the metadata of a README; {} if there is none."""
        file = next((file for file in self.files if file.path == path), None)
        if file and file.size > _JSON_BYTES:
            raise SourceError(f"{path} is too large to be compared by key")
        text = self.read(file, 0, file.size).decode() if file else "{}"
        if not path.endswith(".md"):
            return json.loads(text)
        return dict(_LICENCE_KEY.findall(text.split("\n---")[0] if text[:3] == "---" else ""))


def compare_revisions(
    diff: ContentDiff, uri: str, selects: Sequence[Select], credential: SourceCredential | None
) -> ContentDiff:
    """Compare two commits of a repository on a Hub; failures are notes."""
    notes: list[str] = []
    groups: list[ContentGroup] = []
    changed: list[ContentChange] = []
    with _noted(notes, uri):
        source = HubSource(read_timeout=_SECONDS)
        sides = []
        for commit, select in zip((diff.before, diff.after), selects, strict=True):
            resolved = source.resolve(uri, commit, credential)
            licences = [file for file in resolved.files if _LICENCE.fullmatch(file.path)]
            files = {*select(resolved.files), *licences}
            sides.append(_Revision(source, resolved, [*files], credential))
        with _noted(notes, uri):
            commits = source.commits(sides[1].resolved, diff.before, credential)
            rows = [ContentChange(title, None, commit) for commit, title in commits]
            groups.append(ContentGroup.of("commits", rows))
        versions = [{f.path: (f.size, f.validator) for f in side.files} for side in sides]
        changed = file_changes(versions[0], versions[1])
        groups.append(ContentGroup.of("files", changed))
        for name in [row.name for row in changed if _KEYED.fullmatch(row.name)][:_MOST_JSON]:
            with _noted(notes, name):
                old, new = (side.values(name) for side in sides)
                groups.append(ContentGroup.of(name, _differences(old, new, ())))
                keys = groups[-1].changes
                changed += [replace(key, name=f"{name}: {key.name}") for key in keys]
        limit = ReadLimit(max(sides[1].resolved.size // _SHARE, _MIN_BYTES), _SECONDS)
        reads = [side.read for side in sides]
        tensors, problems = tensor_changes(reads, [side.files for side in sides], limit)
        groups.append(tensors)
        notes += problems
    shown = tuple(group for group in groups if group.changes)
    return replace(diff, groups=shown, alerts=tuple(_alerts(changed)), notes=tuple(notes))


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


def _alerts(changes: Iterable[ContentChange]) -> Iterator[ContentAlert]:
    names: dict[str, list[str]] = {}
    for row in changes:
        for what, pattern in _ALERTS.items():
            if pattern.fullmatch(row.name) and (row.after is not None or what == "licence"):
                values = f" {row.before} -> {row.after}" if ":" in row.name else ""
                names.setdefault(f"{row.how} {what}", []).append(f"{row.name}{values}")
    for what, paths in names.items():
        more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
        yield ContentAlert(what, ", ".join(paths[:_MOST_NAMED]) + more)


def _differences(before: Any, after: Any, path: tuple[str, ...]) -> Iterator[ContentChange]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            values = before.get(key, _ABSENT), after.get(key, _ABSENT)
            yield from _differences(*values, (*path, key))
    elif before != after or type(before) is not type(after):
        yield ContentChange(".".join(path), _text(before), _text(after))


def _text(value: Any) -> str | None:
    if value is _ABSENT:
        return None
    if isinstance(value, list | dict) and len(value) > 4:
        return f"{len(value)} entries"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
