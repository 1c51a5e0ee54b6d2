"""Compare the tensors of two revisions by the headers of their safetensors files."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from trainctl.base.listing import SourceFile
from trainctl.errors import SourceError
from trainctl.model.contents import ContentChange, ContentGroup

ReadFn = Callable[[SourceFile, int, int], bytes]
"""Read a range of a file: offset and length in bytes."""
Tensors = dict[str, str]
"""Type and shape by name."""

_FIRST_BYTES = 16 * 2**10
"""Length of the first request, which holds most headers."""
_SUFFIX, _INDEX = ".safetensors", ".safetensors.index.json"
_MOST_FILES, _PARALLEL = 2_000, 32
_NUMBER = re.compile(r"\b\d+\b")
_MAX_TEXT = 200


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

    Files that both have are not read. If there are too many, only the index tells names.
    """
    known = [{file.validator for file in side} for side in files]
    different = [
        [file for file in side if file.validator not in others]
        for side, others in zip(files, reversed(known), strict=True)
    ]
    by_index = sum(f.path.endswith(_SUFFIX) for side in different for f in side) > _MOST_FILES
    suffix, parse = (_INDEX, _read_index) if by_index else (_SUFFIX, _read_header)
    notes = ["only names of tensors were compared, as there are many files"] if by_index else []
    failures: list[str] = []

    def load(read: ReadFn, file: SourceFile) -> Tensors:
        folder = "".join(file.path.rpartition("/")[:2])
        try:
            return {f"{folder}{name}": text for name, text in parse(read, file, limit).items()}
        except SourceError as error:
            failures.append(error.summary)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            failures.append(f"{file.path} is not valid")
        return {}

    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="tensors") as pool:
        reading = [
            [pool.submit(load, read, file) for file in side if file.path.endswith(suffix)]
            for read, side in zip(reads, different, strict=True)
        ]
    old, new = ({k: v for future in side for k, v in future.result().items()} for side in reading)
    if failures:
        notes.append(f"tensors of {len(failures)} files were not read: {failures[0]}")
        old, new = ({name: side[name] for name in old.keys() & new.keys()} for side in (old, new))
    return ContentGroup.of("tensors", _changes(old, new), _sort), notes


def _read_header(read: ReadFn, file: SourceFile, limit: ReadLimit) -> Tensors:
    """Format: https://huggingface.co/docs/safetensors."""
    first = min(_FIRST_BYTES, file.size)
    data = limit.read(read, file, 0, first)
    end = min(8 + int.from_bytes(data[:8], "little"), file.size)
    if end > first:
        data += limit.read(read, file, first, end - first)
    rows = json.loads(data[8:end]).items()
    return {
        name: f"{row['dtype']} {row['shape']}"[:_MAX_TEXT]
        for name, row in rows
        if name != "__metadata__"
    }


def _read_index(read: ReadFn, file: SourceFile, limit: ReadLimit) -> Tensors:
    return dict.fromkeys(json.loads(limit.read(read, file, 0, file.size))["weight_map"], "?")


def _changes(old: Tensors, new: Tensors) -> list[ContentChange]:
    """Return changes; equal ones of numbered layers are one."""
    groups: dict[tuple[str, str | None, str | None], list[str]] = {}
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before != after:
            groups.setdefault((_NUMBER.sub("*", name), before, after), []).append(name)
    rows = [
        ContentChange((pattern if names[1:] else names[0])[:_MAX_TEXT], before, after, len(names))
        for (pattern, before, after), names in groups.items()
    ]
    return sorted(rows, key=lambda row: -row.count)


def _sort(change: ContentChange) -> str:
    types = [str(text).partition(" ")[0] for text in (change.before, change.after)]
    how = "retyped" if types[0] != types[1] else "reshaped"
    return {"removed": "gone", "changed": how}.get(change.how, change.how)
