"""Compare the code of a job with a commit of git."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from trainctl.jobs.code import SUBMODULE, CodeFile, CodeSource, run_git
from trainctl.model.contents import ContentChange, ContentDiff, ContentGroup

_KINDS = {"100644": "-", "100755": "x", "120000": "l"}
_NUMSTAT = "diff --numstat -z --relative --no-renames --no-ext-diff --no-textconv"
_END = "--end-of-options"


def _committed(root: Path, commit: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, mode and id of all files of a commit, also in submodules."""
    for row in (run_git(root, "ls-tree", "-r", "-z", _END, commit, ".") or b"").split(b"\0")[:-1]:
        head, path = os.fsdecode(row).split("\t")
        mode, _, blob = head.split()
        if mode == SUBMODULE and (root / path / ".git").exists():
            yield from ((f"{path}/{name}", m, b) for name, m, b in _committed(root / path, blob))
        yield path, mode, blob


def compare_code(diff: ContentDiff, root: Path, commit: str, now: Mapping[str, str]) -> ContentDiff:
    """Compare ``CodeSource.blobs`` at ``root`` with a commit; TrainctlError if git fails."""
    old, lines = {}, {}
    for path, mode, blob in _committed(root, commit):
        # Files that exist, but are not part of the code, are ignored.
        if mode in _KINDS and (path in now or not os.path.lexists(root / path)):
            old[path] = f"{_KINDS[mode]} {blob}"
    for row in (run_git(root, *_NUMSTAT.split(), _END, commit, "--", ".") or b"").split(b"\0")[:-1]:
        added, removed, name = row.split(b"\t")
        if added.isdigit():  # not of binary files
            lines[os.fsdecode(name)] = int(added), int(removed)
    rows = []
    for path in sorted(path for path in {*old, *now} if old.get(path) != now.get(path)):
        plus, minus = lines.get(path, (0, 0))
        if path not in lines and path not in old and (root / path).is_file():  # not in git yet
            plus = (root / path).read_bytes().count(b"\n")
        counts = minus if path in old else None, plus if path in now else None
        rows.append(ContentChange(path, *counts))
    files = tuple(CodeFile(path, blob[0], 0, blob[2:]) for path, blob in old.items())
    exact = CodeSource(root, files).tree.digest == diff.before
    note = f"the last run had changes since commit {commit[:12]}, with which its code is compared"
    groups = (ContentGroup.of("files", rows),)
    return replace(diff, groups=groups, notes=() if exact else (note,))
