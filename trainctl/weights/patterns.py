"""Select files of a source by patterns.

Patterns are shell-style and case-sensitive, as in huggingface_hub: ``*`` matches ``/``, a trailing ``/`` selects the
directory, a backslash is a ``/``. In addition, a leading ``/`` anchors a pattern at the top; then ``*`` and ``?`` don't
match ``/``, and ``**/`` matches any number of directories.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import PurePosixPath

from trainctl.base.checkpoints.layout import is_safetensors_temporary
from trainctl.base.filesystem.safe_path import is_unusable
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.listing import SourceFile, sort_files

_MAX_COMPARED = 1000  # difflib compares with each
_LITERAL = compile_lazily(r"[^*?\[]*")
Matcher = Callable[[str], object]


def select(
    files: Iterable[SourceFile], allow: Sequence[str] | None, ignore: Sequence[str] | None
) -> tuple[Sequence[SourceFile], tuple[str, ...]]:
    """Return the selected files, sorted by path, and the patterns without a match.

    ``allow`` None selects every file; ``ignore`` takes precedence. Unusable files are selected unless certainly excluded;
    files that a killed save of safetensors left never are.
    """
    allowing = None if allow is None else {pattern: compile_pattern(pattern) for pattern in allow}
    ignoring = {pattern: compile_pattern(pattern) for pattern in ignore or ()}
    used: set[str] = set()

    def hit(matchers: dict[str, Matcher], path: str) -> bool:
        matched = [pattern for pattern, matches in matchers.items() if matches(path)]
        used.update(matched)
        return bool(matched)

    def selected() -> Iterator[SourceFile]:
        for file in files:
            path = file.path.replace("\\", "/")
            allowed = allowing is None or hit(allowing, path)
            ignored = hit(ignoring, path)
            if is_unusable(file):
                # it may be a file or a directory
                other = path[:-1] if path.endswith("/") else f"{path}/"
                ignored = hit(ignoring, other) or ignored
                prefixes = (_LITERAL.match(p.replace("\\", "/").lstrip("/")) for p in allow or ())
                allowed = allowed or (
                    path.endswith("/")  # its content is unknown
                    and any(
                        m and (m[0].startswith(path) or path.startswith(m[0])) for m in prefixes
                    )
                )
            if allowed and not ignored and not is_safetensors_temporary(path.rpartition("/")[2]):
                yield file

    chosen = sort_files(selected())
    patterns = [*(allow or ()), *(ignore or ())]
    unmatched = tuple(dict.fromkeys(pattern for pattern in patterns if pattern not in used))
    return chosen, unmatched


def nearest_pattern(pattern: str, files: Iterable[SourceFile]) -> str | None:
    """Return a file's path, name or suffix similar to a pattern, if any."""
    candidates: set[str] = set()
    for file in islice(files, _MAX_COMPARED):
        name = file.path.rpartition("/")[2]
        candidates |= {file.path, name, f"*{PurePosixPath(name).suffix}"}
        candidates |= {f"{part}/*" for part in PurePosixPath(file.path).parts[:-1]}
    matches = get_close_matches(pattern, sorted(candidates - {"*"}), n=1, cutoff=0.6)
    return matches[0] if matches else None


def compile_pattern(pattern: str) -> Matcher:
    """Return a function that matches paths with the pattern."""
    text = pattern.replace("\\", "/")
    if text.endswith("/"):
        text += "**" if text.startswith("/") else "*"
    if not text.startswith("/"):
        return re.compile(fnmatch.translate(text)).match
    steps = [_step(token) for token in _TOKEN.findall(text[1:])]

    def matches(path: str) -> bool:
        """Match by sets of positions; regular expressions could backtrack."""
        at = {0}
        for step in steps:
            at = step(path, at)
            if not at:
                return False
        return len(path) in at

    return matches


_TOKEN = compile_lazily(r"\*\*/|\*\*|\*|\?|\[[!^]?\]?[^\]]*\]|[^*?[]+|.", re.DOTALL)
_Step = Callable[[str, set[int]], set[int]]
"""Maps positions in a path before a token to positions after it."""


def _step(token: str) -> _Step:
    if token in _WILD:
        return _WILD[token]
    if len(token) > 2 and token.startswith("["):
        fits = re.compile(fnmatch.translate(token)).match
        return lambda path, at: {n + 1 for n in _match_character(path, at) if fits(path[n])}
    return lambda path, at: {n + len(token) for n in at if path.startswith(token, n)}


def _match_character(path: str, at: set[int]) -> set[int]:
    return {index for index in at if path[index : index + 1] not in ("", "/")}


def _match_directories(path: str, at: set[int]) -> set[int]:
    positions = set(at)
    for index in at:
        while (slash := path.find("/", index)) > index and slash + 1 not in positions:
            index = slash + 1
            positions.add(index)
    return positions


def _match_name(path: str, at: set[int]) -> set[int]:
    positions: set[int] = set()
    for index in at:
        if index not in positions:
            slash = path.find("/", index)
            positions.update(range(index, (len(path) if slash < 0 else slash) + 1))
    return positions


_WILD: dict[str, _Step] = {
    "**/": _match_directories,
    "**": lambda path, at: set(range(min(at), len(path) + 1)),
    "*": _match_name,
    "?": lambda path, at: {place + 1 for place in _match_character(path, at)},
}
