"""Which files of a source are wanted.

Patterns are shell-style and case-sensitive, and mean what they mean to huggingface_hub: ``*`` crosses ``/``, a
trailing ``/`` takes the whole directory, a backslash is a ``/``. Ours in addition: a leading ``/`` anchors the
pattern at the top, and then ``*`` and ``?`` stop at ``/`` and ``**/`` spans any number of directories.
"""

from __future__ import annotations

import fnmatch
import re
from difflib import get_close_matches
from itertools import islice
from pathlib import PurePosixPath
from typing import Callable, Iterable, Iterator, Sequence, Set

from trainctl.base.filesystem.safe_path import is_unusable
from trainctl.base.listing import SourceFile, sort_files

_MAX_COMPARED = 1000
_LITERAL = re.compile(r"[^*?\[]*")
Matcher = Callable[[str], object]


def select(
    files: Iterable[SourceFile], allow: Sequence[str] | None, ignore: Sequence[str] | None
) -> tuple[Sequence[SourceFile], tuple[str, ...]]:
    """The wanted files, sorted by path, and the patterns that matched no file at all.

    Without ``allow`` every file is wanted; with an empty ``allow`` none is. ``ignore`` wins. What the source can't give is among them
    unless they surely leave it out.
    """
    allowing = None if allow is None else {pattern: compile_pattern(pattern) for pattern in allow}
    ignoring = {pattern: compile_pattern(pattern) for pattern in ignore or ()}
    used: set[str] = set()

    def hit(matchers: dict[str, Matcher], path: str) -> bool:
        matched = [pattern for pattern, matches in matchers.items() if matches(path)]
        used.update(matched)
        return bool(matched)

    def chosen() -> Iterator[SourceFile]:
        for file in files:
            path = file.path.replace("\\", "/")
            allowed = allowing is None or hit(allowing, path)
            ignored = hit(ignoring, path)
            if is_unusable(file):
                # By its name as a file or a directory: nobody could tell what it would be.
                other = path[:-1] if path.endswith("/") else f"{path}/"
                ignored = hit(ignoring, other) or ignored
                allowed = allowed or (path.endswith("/") and _any_below(allow or (), path))
            if allowed and not ignored:
                yield file

    wanted = sort_files(chosen())
    everything = [*(allow or ()), *(ignore or ())]
    unmatched = tuple(dict.fromkeys(pattern for pattern in everything if pattern not in used))
    return wanted, unmatched


def _any_below(patterns: Iterable[str], directory: str) -> bool:
    """Whether one of the patterns may match something in a directory of which nobody knows what is in it."""
    beginnings = (_LITERAL.match(pattern.replace("\\", "/").lstrip("/")) for pattern in patterns)
    fixed = [beginning[0] for beginning in beginnings if beginning]
    return any(one.startswith(directory) or directory.startswith(one) for one in fixed)


def nearest_pattern(pattern: str, files: Iterable[SourceFile]) -> str | None:
    """What was probably meant by a pattern that matches nothing: a path, a name or an ending that files have."""
    found: set[str] = set()
    for file in islice(files, _MAX_COMPARED):
        name = file.path.rpartition("/")[2]
        found |= {file.path, name, f"*{PurePosixPath(name).suffix}"}
        found |= {f"{part}/*" for part in PurePosixPath(file.path).parts[:-1]}
    near = get_close_matches(pattern, sorted(found - {"*"}), n=1, cutoff=0.6)
    return near[0] if near else None


def compile_pattern(pattern: str) -> Matcher:
    """A function that tells whether a path matches the pattern."""
    text = pattern.replace("\\", "/")
    if text.endswith("/"):
        text += "**" if text.startswith("/") else "*"
    if text.startswith("/"):
        return _compile_anchored(text[1:])
    return re.compile(fnmatch.translate(text)).match


_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[[!^]?\]?[^\]]*\]|[^*?[]+|.", re.DOTALL)
_Step = Callable[[str, Set[int]], Set[int]]
"""From where in a path one may be before a token to where one may be behind it."""


def _compile_anchored(pattern: str) -> Matcher:
    """Token by token, for all ways at once: a regular expression would try one after another, for hours where there are many."""
    steps = [_step(token) for token in _TOKEN.findall(pattern)]

    def matches(path: str) -> bool:
        at = {0}
        for step in steps:
            at = step(path, at)
            if not at:
                return False
        return len(path) in at

    return matches


def _step(token: str) -> _Step:
    if token in _WILD:
        return _WILD[token]
    if len(token) > 2 and token.startswith("["):
        fits = re.compile(fnmatch.translate(token)).match
        return lambda path, at: {n + 1 for n in _match_character(path, at) if fits(path[n])}
    return lambda path, at: {n + len(token) for n in at if path.startswith(token, n)}


def _match_character(path: str, at: set[int]) -> set[int]:
    return {place for place in at if path[place : place + 1] not in ("", "/")}


def _match_directories(path: str, at: set[int]) -> set[int]:
    found = set(at)
    for place in at:
        while (slash := path.find("/", place)) > place and slash + 1 not in found:
            place = slash + 1
            found.add(place)
    return found


def _match_name(path: str, at: set[int]) -> set[int]:
    found: set[int] = set()
    for place in at:
        if place not in found:
            slash = path.find("/", place)
            found.update(range(place, (len(path) if slash < 0 else slash) + 1))
    return found


def _match_anything(path: str, at: set[int]) -> set[int]:
    return set(range(min(at), len(path) + 1))


_WILD: dict[str, _Step] = {
    "**/": _match_directories,
    "**": _match_anything,
    "*": _match_name,
    "?": lambda path, at: {place + 1 for place in _match_character(path, at)},
}
