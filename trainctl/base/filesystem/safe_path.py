"""Check that upstream file names are safe as paths below a directory."""

from __future__ import annotations

import json
from collections.abc import Sequence

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.listing import SourceFile
from trainctl.errors import SourceDenied, SourceError

_FORBIDDEN = compile_lazily(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\\]")
_MAX_NAME = 255
_MAX_PATH = 4000
_UNUSABLE = "unusable:"
DENIED = "is not readable by this user"
ARCHIVED = "is archived"
_SPECIAL = compile_lazily(rf"^/|[*?[]|{_FORBIDDEN.pattern}")


def unusable_file(path: str, problem: str) -> SourceFile:
    """Return a file that is an error once selected; directories end in ``/``."""
    return SourceFile(path, 0, f"{_UNUSABLE}{problem}")


def is_unusable(file: SourceFile) -> bool:
    """Return whether the file is one of ``unusable_file``."""
    return file.validator.startswith(_UNUSABLE)


def check_paths(source: str, files: Sequence[SourceFile]) -> None:
    """Raise SourceError for the first unusable or unsafe of sorted ``files``."""
    prefixes: list[str] = []  # earlier paths that are prefixes of this one
    for file in files:
        if is_unusable(file):
            raise _unusable_error(source, file, files)
        problem = _problem(file.path)
        if problem:
            raise _unsafe_error(source, file.path, problem)
        while prefixes and not file.path.startswith(prefixes[-1]):
            prefixes.pop()
        if prefixes and prefixes[-1] == file.path:
            raise _unsafe_error(source, file.path, "is listed twice")
        for prefix in prefixes:
            if file.path.startswith(f"{prefix}/"):
                raise _unsafe_error(source, prefix, "is both a file and a directory")
        prefixes.append(file.path)


def display_path(path: str) -> str:
    """Escape control characters of a foreign file name for display."""
    return ascii(path)[1:-1] if _FORBIDDEN.search(path) or not path.isprintable() else path


def _problem(path: str) -> str | None:
    if _FORBIDDEN.search(path):
        return "contains a control character, a backslash or text that is not UTF-8"
    if path.startswith("/"):
        return "is an absolute path"
    parts = path.split("/")
    if ".." in parts or "." in parts:
        return "leaves its directory"
    if "" in parts:
        return "has an empty component"
    encoded = [len(part.encode()) for part in parts]
    if max(encoded) > _MAX_NAME or sum(encoded) + len(parts) > _MAX_PATH:
        return f"is longer than the limit of file names ({_MAX_NAME} bytes)"
    return None


def _unusable_error(source: str, file: SourceFile, files: Sequence[SourceFile]) -> SourceError:
    problem = file.validator[len(_UNUSABLE) :]
    if problem.startswith(ARCHIVED):
        count = sum(other.validator.startswith(_UNUSABLE + ARCHIVED) for other in files)
        verb = "object is" if count == 1 else "objects are"
        storage_class = problem[len(ARCHIVED) :]
        return SourceDenied(
            f"{source}: {count} {verb} archived{storage_class}, for example {display_path(file.path)}",
            "Restore archived objects first, or exclude them with ignore_patterns.",
            code="archived-source",
        )
    summary = f"{source}: {display_path(file.path)} {problem}"
    if problem == DENIED:
        return SourceDenied(
            summary, "Give this user read access, or exclude it with ignore_patterns."
        )
    return SourceError(
        summary,
        "Replace it with the file itself, remove it, or exclude it with ignore_patterns.",
        code="unsafe-link",
    )


def _unsafe_error(source: str, path: str, problem: str) -> SourceError:
    pattern = json.dumps([_SPECIAL.sub("?", path)], ensure_ascii=False)
    return SourceError(
        f"{source}: the file name '{display_path(path)}' {problem}",
        f"Exclude the file with ignore_patterns: {pattern}, or have it renamed upstream: it could overwrite other files. Nothing was stored.",
        code="unsafe-file-name",
    )
