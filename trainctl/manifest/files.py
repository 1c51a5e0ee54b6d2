"""Files of a manifest."""

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
"""Line ends of YAML 1.1, by which PyYAML counts lines."""


class UnreadableManifest(Exception):
    """A file that can't be parsed; carries the diagnostic."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.summary)
        self.diagnostic = diagnostic


def unreadable(summary: str, detail: str = "", *, where: Position, code: str) -> UnreadableManifest:
    """Create the exception for a problem."""
    return UnreadableManifest(error(summary, detail, where=where, code=code))


def manifest_files(directory: Path) -> list[str]:
    """Return the sorted names of a directory's manifest files.

    Raises StorageError if the directory can't be read.
    """
    try:
        names = [entry.name for entry in directory.iterdir() if entry.is_file()]
    except OSError as problem:
        raise StorageError(f"cannot read directory {directory}: {problem.strerror}") from problem
    return sorted(filter(_FILE.fullmatch, names))


def file_bytes(path: Path, name: str) -> bytes:
    """Read a file, called ``name`` in positions; raise UnreadableManifest on failure."""
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
    """Open a regular file for reading; raise OSError for anything else, such as pipes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return os.fdopen(descriptor, "rb")


def read_all_files(directory: Path) -> dict[str, bytes]:
    """Return the content of all manifest files by name; empty if any can't be read."""
    try:
        return {name: file_bytes(directory / name, name) for name in manifest_files(directory)}
    except UnreadableManifest:
        return {}


def lines_of(text: str, name: str) -> list[str]:
    """Split a file into lines as the parser of its format does."""
    return text.split("\n") if name.endswith(".toml") else _YAML_LINE_END.split(text)
