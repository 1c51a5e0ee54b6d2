"""Names that upstream gives its files, held to what may become a path below a directory of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trainctl.base.listing import SourceFile
from trainctl.errors import SourceDenied, SourceError

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\\]")
_MAX_NAME = 255
_MAX_PATH = 4000
_UNUSABLE = "unusable:"
DENIED = "may not be read by this user"


def unusable_file(path: str, problem: str) -> SourceFile:
    """A file that a source can't provide, which is an error if it is wanted; ``path`` ends in ``/`` if it is a directory."""
    return SourceFile(path, 0, f"{_UNUSABLE}{problem}")


def is_unusable(file: SourceFile) -> bool:
    """Whether that is what the source says of it."""
    return file.validator.startswith(_UNUSABLE)


def check_paths(source: str, files: Iterable[SourceFile]) -> None:
    """``files`` are sorted by path. SourceError naming the source and the first file that its source can't give, or that could not be put safely below a directory."""
    beginnings: list[
        str
    ] = []  # earlier paths that this one begins with: nothing else sorts between
    for file in files:
        if is_unusable(file):
            raise _unusable_error(source, file)
        problem = _problem(file.path)
        if problem:
            raise _unsafe_error(source, file.path, problem)
        while beginnings and not file.path.startswith(beginnings[-1]):
            beginnings.pop()
        if beginnings and beginnings[-1] == file.path:
            raise _unsafe_error(source, file.path, "is listed twice")
        for beginning in beginnings:
            if file.path.startswith(f"{beginning}/"):
                raise _unsafe_error(source, beginning, "is both a file and a directory")
        beginnings.append(file.path)


def display_path(path: str) -> str:
    """A file name that isn't ours, for people: whatever could disturb a terminal or a line is escaped."""
    return ascii(path)[1:-1] if _FORBIDDEN.search(path) or not path.isprintable() else path


def _problem(path: str) -> str | None:
    if _FORBIDDEN.search(path):
        return "holds a control character, a backslash or text that is not UTF-8"
    if path.startswith("/"):
        return "is an absolute path"
    parts = path.split("/")
    if ".." in parts or "." in parts:
        return "leaves its directory"
    if "" in parts:
        return "has an empty component"
    encoded = [len(part.encode()) for part in parts]
    if max(encoded) > _MAX_NAME or sum(encoded) + len(parts) > _MAX_PATH:
        return f"is longer than a file name can be ({_MAX_NAME} bytes)"
    return None


def _unusable_error(source: str, file: SourceFile) -> SourceError:
    problem = file.validator[len(_UNUSABLE) :]
    summary = f"{source}: {display_path(file.path)} {problem}"
    if problem == DENIED:
        return SourceDenied(
            summary, "Give this user the right to read it, or leave it out with ignore_patterns."
        )
    return SourceError(
        summary,
        "Put the content itself into the directory, take it out, or leave it out with ignore_patterns.",
        code="unsafe-link",
    )


def _unsafe_error(source: str, path: str, problem: str) -> SourceError:
    return SourceError(
        f"{source}: the file name '{display_path(path)}' {problem}",
        "It could be written outside its place or over another file, so nothing of the source is taken. "
        "Leave the file out with ignore_patterns, or have it renamed upstream.",
        code="unsafe-file-name",
    )
