"""Which files are a job's code, their digest, and the archive that travels."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import tarfile
import tempfile
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from trainctl.errors import TrainctlError
from trainctl.model.json import digest
from trainctl.plan.values import CodeTree

LEFT_OUT = (
    ".git/", "__pycache__/", "*.pyc", ".venv/", "venv/", "node_modules/", ".mypy_cache/", ".pytest_cache/",
    ".ruff_cache/", ".ipynb_checkpoints/", ".DS_Store",
)  # fmt: skip
"""What is left out where git doesn't say what the code is."""

_ASK_BY_NAME = GitIgnoreSpec.from_lines(
    [
        ".env*",
        "id_rsa*",
        "id_dsa*",
        "id_ecdsa*",
        "id_ed25519*",
        "*.pem",
        "*.key",
        "*.p12",
        "*.pfx",
        ".netrc",
    ]
)
_NEVER = GitIgnoreSpec.from_lines(
    [".git/", ".trainctl/", "trainctl.lock", "trainctl.yaml", "trainctl.yml", "trainctl.toml"]
    + [f"*.trainctl.{suffix}" for suffix in ("yaml", "yml", "toml")]
)
_IGNORE_FILES = (".trainctlignore", ".truss_ignore")
_PLAN_MARK = b'"trainctl_plan"'


@dataclass(frozen=True, slots=True)
class CodeFile:
    """One file that travels. ``kind`` is ``x``, ``-`` or ``l``; ``blob`` git's id of its content."""

    path: str
    kind: str
    size: int
    blob: str


@dataclass(frozen=True, slots=True)
class Code:
    """A job's code: where it lies, its files sorted by path, and what was left out without being ignored."""

    root: Path
    files: tuple[CodeFile, ...]
    left_out: tuple[str, ...] = ()

    @property
    def tree(self) -> CodeTree:
        """What the plan says of it."""
        entries = sorted([unicodedata.normalize("NFC", f.path), f.kind, f.blob] for f in self.files)
        return CodeTree(
            digest(entries), len(self.files), sum(f.size for f in self.files), self.left_out
        )


def scan(directory: Path, code: str, secret_files: Sequence[Path] = ()) -> Code:
    """The code of a job whose manifest lies in ``directory``. TrainctlError names the file that can't be code."""
    root = (directory / code).resolve()
    if not root.is_dir():
        raise TrainctlError(
            f"code directory {code!r} does not exist", "Create it, or set `code` to a directory."
        )
    _stay_inside(root, directory.resolve(), code)
    listed = _git_files(root)
    paths, left_out = (listed, set[str]()) if listed is not None else _walk(root)
    ignored, asked = _ignore_rules(root)
    kept = []
    for path in paths:
        if (
            _NEVER.match_file(path)
            or ignored.match_file(path)
            or (root / path).resolve() in secret_files
        ):
            continue
        if _ASK_BY_NAME.match_file(path) and not asked.match_file(path):
            left_out.add(path)
        elif not _is_saved_plan(root / path):
            kept.append(path)
    files = _describe(root, sorted(kept), use_git=listed is not None)
    return Code(root, tuple(files), tuple(sorted(left_out)))


def archive(code: Code) -> Iterator[bytes]:
    """The code as a tar, the same bytes for the same digest on every machine, in pieces of 1 MiB."""
    with tempfile.TemporaryFile() as spool:
        with tarfile.open(fileobj=spool, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for file in code.files:
                _add(tar, code.root, file)
        spool.seek(0)
        while piece := spool.read(2**20):
            yield piece


def _add(tar: tarfile.TarFile, root: Path, file: CodeFile) -> None:
    info = tarfile.TarInfo(unicodedata.normalize("NFC", file.path))
    info.mode = 0o755 if file.kind == "x" else 0o644
    if file.kind == "l":
        info.type = tarfile.SYMTYPE
        info.linkname = os.readlink(root / file.path)  # noqa: PTH115 (the text, not a path of ours)
        tar.addfile(info)
        return
    with (root / file.path).open("rb") as stream:
        info.size = os.fstat(stream.fileno()).st_size
        tar.addfile(info, stream)


def _stay_inside(root: Path, directory: Path, code: str) -> None:
    if root.is_relative_to(directory):
        return
    top = _git(directory, "rev-parse", "--show-toplevel")
    if top is None or not root.is_relative_to(Path(os.fsdecode(top).rstrip("\n")).resolve()):
        raise TrainctlError(
            f"code {code!r} lies outside the manifest's directory",
            "Move it beside the manifest, or keep both in one git repository.",
        )


def _git(directory: Path, *args: str, stdin: bytes = b"") -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *args], input=stdin, capture_output=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def _git_files(root: Path) -> list[str] | None:
    out = _git(root, "ls-files", "-co", "--exclude-standard", "-z")
    if out is None:
        return None
    names = {os.fsdecode(name) for name in out.split(b"\0") if name}
    return [name for name in names if (root / name).is_symlink() or (root / name).is_file()]


def _walk(root: Path) -> tuple[list[str], set[str]]:
    skip = GitIgnoreSpec.from_lines(LEFT_OUT)
    paths: list[str] = []
    left_out: set[str] = set()
    for folder, folders, names in os.walk(root):
        base = Path(folder).relative_to(root)
        for name in tuple(folders):
            inside = f"{base / name}/"
            if skip.match_file(inside):
                left_out.add(inside)
                folders.remove(name)
            elif (root / base / name).is_symlink():
                names.append(name)
        for name in names:
            path = str(base / name)
            (left_out.add if skip.match_file(path) else paths.append)(path)
    return paths, left_out


def _ignore_rules(root: Path) -> tuple[GitIgnoreSpec, GitIgnoreSpec]:
    """What the ignore file leaves out, and what it asks for by a negated pattern."""
    for name in _IGNORE_FILES:
        if (root / name).is_file():
            lines = (root / name).read_text(encoding="utf-8").splitlines()
            asked = [line[1:] for line in lines if line.startswith("!")]
            return GitIgnoreSpec.from_lines([*lines, name]), GitIgnoreSpec.from_lines(asked)
    return GitIgnoreSpec.from_lines([]), GitIgnoreSpec.from_lines([])


def _is_saved_plan(path: Path) -> bool:
    if path.is_symlink():
        return False
    with path.open("rb") as stream:
        return _PLAN_MARK in stream.read(64)


def _describe(root: Path, paths: list[str], *, use_git: bool) -> Iterator[CodeFile]:
    plain = [path for path in paths if not (root / path).is_symlink()]
    blobs = dict(zip(plain, _blob_ids(root, plain, use_git=use_git), strict=True))
    for path in paths:
        if any(ord(char) < 32 or 0xD800 <= ord(char) < 0xE000 for char in path):
            raise TrainctlError(
                f"the code has a file named {path!a}",
                "Rename it; a name holds no control characters.",
            )
        if path in blobs:
            status = (root / path).stat()
            yield CodeFile(
                path, "x" if status.st_mode & stat.S_IXUSR else "-", status.st_size, blobs[path]
            )
        else:
            target = (root / path).resolve()
            if not target.is_relative_to(root):
                raise TrainctlError(
                    f"{path} in the code is a link that leaves it",
                    "Replace it by the file, or leave it out through .trainctlignore.",
                )
            text = os.fsencode(os.readlink(root / path))  # noqa: PTH115 (the text, not a path of ours)
            yield CodeFile(path, "l", len(text), _blob(text))


def _blob_ids(root: Path, paths: list[str], *, use_git: bool) -> list[str]:
    if use_git and paths:
        out = _git(
            root,
            "hash-object",
            "--stdin-paths",
            stdin=b"".join(os.fsencode(p) + b"\n" for p in paths),
        )
        ids = (out or b"").decode("ascii").split()
        if len(ids) == len(paths):
            return ids
    return [_blob((root / path).read_bytes()) for path in paths]


def _blob(data: bytes) -> str:
    """git's id of a blob (https://git-scm.com/book/en/v2/Git-Internals-Git-Objects)."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
