"""The files of a manifest: which they are, and their bytes."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

from trainctl.errors import StorageError
from trainctl.model.diagnostics import Diagnostic, Position, error

MAX_FILE_BYTES = 2**20

_FILE = re.compile(r"(?:.+\.)?trainctl\.(?:yaml|yml|toml)")

_YAML_LINE_END = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""Of YAML 1.1, by which its parser counts."""


class UnreadableManifest(Exception):
    """A text from which no tree can be made; carries why."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.summary)
        self.diagnostic = diagnostic


def unreadable(summary: str, detail: str = "", *, where: Position, code: str) -> UnreadableManifest:
    """The error for a text with this problem."""
    return UnreadableManifest(error(summary, detail, where=where, code=code))


def manifest_files(directory: Path) -> list[str]:
    """The names of a directory's manifest files, sorted. StorageError if it can't be read."""
    try:
        found = [entry.name for entry in directory.iterdir() if entry.is_file()]
    except OSError as problem:
        raise StorageError(f"cannot read directory {directory}: {problem.strerror}") from problem
    return sorted(name for name in found if _FILE.fullmatch(name))


def file_bytes(path: Path, name: str) -> bytes:
    """What a file holds, ``name`` being what positions call it; Unreadable if that is too much, or can't be read."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as problem:
        raise unreadable(
            f"cannot read the file: {problem.strerror}",
            where=Position(name),
            code="unreadable-file",
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise unreadable(
            "the file is larger than 1 MiB",
            "Split it into several files NAME.trainctl.yaml.",
            where=Position(name),
            code="file-too-large",
        )
    return data


def open_file(path: Path) -> BinaryIO:
    """A file, for reading; OSError where it is anything else, a pipe whose other end would be waited for among them."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return os.fdopen(descriptor, "rb")


def read_all_files(directory: Path) -> dict[str, bytes]:
    """The bytes of all manifest files by their names; nothing if one of them can't be had, which ``read`` explains."""
    try:
        return {name: file_bytes(directory / name, name) for name in manifest_files(directory)}
    except UnreadableManifest:
        return {}


def lines_of(text: str, name: str) -> list[str]:
    """The lines of a file, as the parser of its format counts them."""
    return text.split("\n") if name.endswith(".toml") else _YAML_LINE_END.split(text)
