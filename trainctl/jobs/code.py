"""Which files are a job's code, their digest, and the archive that travels."""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
import subprocess
import tarfile
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trainctl.base.json import digest
from trainctl.errors import TrainctlError
from trainctl.jobs.checkout import refuse_bare
from trainctl.plan.values import CodeTree
from trainctl.remote.responses import format_exit_status

DEFAULT_EXCLUDES = (
    ".git/", "__pycache__/", "*.pyc", ".venv/", "venv/", "node_modules/", ".mypy_cache/", ".pytest_cache/",
    ".ruff_cache/", ".ipynb_checkpoints/", ".DS_Store",
)  # fmt: skip
"""What is left out where git doesn't say what the code is."""

_SENSITIVE_PATTERNS = (
    ".env*", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.p12", "*.pfx", ".netrc",
)  # fmt: skip
_ALWAYS_EXCLUDED = (
    ".git/", ".trainctl/", "trainctl.lock", ".trainctl.lock.*", "trainctl.yaml", "trainctl.yml", "trainctl.toml",
    "*.trainctl.yaml", "*.trainctl.yml", "*.trainctl.toml",
)  # fmt: skip
_IGNORE_FILES = (".trainctlignore", ".truss_ignore")
_PLAN_MARK = b'"trainctl_plan"'
_GIT_HOOK_VARIABLES = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"})
"""What git tells its hooks: of a repository that need not be the one of the code."""


@dataclass(frozen=True, slots=True)
class CodeFile:
    """One file that travels. ``kind`` is ``x``, ``-`` or ``l``; ``blob`` git's id of its content."""

    path: str
    kind: str
    size: int
    blob: str


@dataclass(frozen=True, slots=True)
class CodeSource:
    """A job's code: where it lies, its files sorted by path, and what was left out without being ignored."""

    root: Path
    files: tuple[CodeFile, ...]
    excluded: tuple[str, ...] = ()

    @property
    def tree(self) -> CodeTree:
        """What the plan says of it."""
        entries = sorted([_nfc(f.path), f.kind, f.blob] for f in self.files)
        return CodeTree(
            digest(entries), len(self.files), sum(f.size for f in self.files), self.excluded
        )


def scan(directory: Path, code: str, withheld: Sequence[Path] = ()) -> CodeSource:
    """The code of a job whose manifest lies in ``directory``. TrainctlError names the file that can't be code.

    ``withheld`` are resolved: files of secrets, and directories in which trainctl keeps things, are never code.
    """
    try:
        return _scan(directory, code, withheld)
    except OSError as error:
        what = f"{error.filename} in the code" if error.filename else "the code"
        raise TrainctlError(
            f"cannot read {what}: {error.strerror}",
            "Make it readable, or exclude it with .trainctlignore.",
            code="unreadable-code",
        ) from error


def _scan(directory: Path, code: str, withheld: Sequence[Path]) -> CodeSource:
    root = (directory / code).resolve()
    if not root.is_dir():
        raise TrainctlError(
            f"code directory {code!r} not found",
            "Create it, or set `code` to a directory.",
            code="missing-code",
        )
    _require_inside(root, directory.resolve(), code)
    kept_here = _directories(root, withheld)
    listed = _git_files(root)
    paths, excluded = _walk(root, kept_here) if listed is None else listed
    excluded |= {one for one in kept_here if (root / one).is_dir()}
    ignored, asked = _ignore_rules(root)
    never, must_be_asked = _pattern_matcher(_ALWAYS_EXCLUDED), _pattern_matcher(_SENSITIVE_PATTERNS)
    kept = []
    for path in paths:
        if (
            never(path)
            or path.startswith(kept_here)
            or ignored(path)
            or Path(os.path.realpath(root / path)) in withheld
        ):
            continue
        if must_be_asked(path) and not asked(path):
            excluded.add(path)
        elif not _is_saved_plan(root / path):
            kept.append(path)
    files = _describe(root, sorted(kept, key=_nfc), use_git=listed is not None)
    told = sorted(path for path in excluded if not ignored(path))
    return CodeSource(root, tuple(files), tuple(told))


@contextmanager
def pack(code: CodeSource) -> Iterator[Iterator[bytes]]:
    """The code as a tar in pieces of 1 MiB: the same bytes for the same files, whoever packs them, where and when.

    It is packed when the context is entered; whoever sends it looks before whether the files are still those.
    """
    with tempfile.TemporaryFile() as spool:
        with tarfile.open(fileobj=spool, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for file in code.files:
                _add(tar, code.root, file)
        spool.seek(0)
        yield iter(lambda: spool.read(2**20), b"")


def _add(tar: tarfile.TarFile, root: Path, file: CodeFile) -> None:
    info = tarfile.TarInfo(_nfc(file.path))
    info.mode = 0o755 if file.kind == "x" else 0o644
    if file.kind == "l":
        info.type = tarfile.SYMTYPE
        info.linkname = os.readlink(root / file.path)  # noqa: PTH115 (the text, not a path of ours)
        tar.addfile(info)
        return
    with (root / file.path).open("rb") as stream:
        info.size = os.fstat(stream.fileno()).st_size
        tar.addfile(info, stream)


def _require_inside(root: Path, directory: Path, code: str) -> None:
    if root.is_relative_to(directory):
        return
    top = _git(directory, "rev-parse", "--show-toplevel")
    if top is None or not root.is_relative_to(Path(os.fsdecode(top).rstrip("\n")).resolve()):
        raise TrainctlError(
            f"code {code!r} is outside the manifest's directory",
            "Move it next to the manifest, or keep both in one git repository.",
            code="code-outside",
        )


def _directories(root: Path, withheld: Sequence[Path]) -> tuple[str, ...]:
    """Those directories that lie in the code, as paths in it. TrainctlError where the code itself is one."""
    if root in withheld:
        raise TrainctlError(
            f"{root} is the code directory, and also contains files of trainctl",
            "Use a separate directory for the code or for those files.",
            code="stored-in-code",
        )
    inside = (one for one in withheld if one.is_relative_to(root) and not one.is_file())
    return tuple(sorted(f"{one.relative_to(root)}/" for one in inside))


def _git(directory: Path, *args: str, stdin: bytes = b"") -> bytes | None:
    """What git says; None without git or outside a work tree. TrainctlError where git refuses to tell.

    It runs no program that came with the code.
    """
    refuse_bare(directory)
    environ = {name: value for name, value in os.environ.items() if name not in _GIT_HOOK_VARIABLES}
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", str(directory), *args],
            input=stdin,
            capture_output=True,
            check=False,
            env={**environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return None
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.decode(errors="replace").strip()
    if "not a git repository" in said or "must be run in a work tree" in said:
        return None
    raise TrainctlError(
        f"git cannot list the code in {directory}",
        said or f"git exited with {format_exit_status(done.returncode)}.",
        code="git-failed",
    )


def _git_files(root: Path) -> tuple[list[str], set[str]] | None:
    """What git lists, less what was deleted; and the directories that it names without looking inside: submodules."""
    out = _git(root, "ls-files", "-co", "--exclude-standard", "-z")
    if out is None:
        return None
    names = {os.fsdecode(name) for name in out.split(b"\0") if name}
    paths = [name for name in names if (root / name).is_symlink() or (root / name).is_file()]
    inner = {f"{name.rstrip('/')}/" for name in names.difference(paths) if (root / name).is_dir()}
    return paths, inner


@cache
def _pattern_matcher(lines: tuple[str, ...]) -> Callable[[str], object]:
    """Tells of a path whether lines of an ignore file mean it."""
    from pathspec import GitIgnoreSpec  # only where there is code to look at

    return GitIgnoreSpec.from_lines(lines).match_file


def _walk(root: Path, kept_here: Sequence[str]) -> tuple[list[str], set[str]]:
    """What lies there but for the fixed list, and for directories that are no code, whatever their size."""
    skip = _pattern_matcher(DEFAULT_EXCLUDES)
    paths: list[str] = []
    excluded: set[str] = set()
    for folder, folders, names in os.walk(root):
        base = Path(folder).relative_to(root)
        for name in tuple(folders):
            inside = f"{base / name}/"
            if inside in kept_here:
                folders.remove(name)
            elif skip(inside):
                excluded.add(inside)
                folders.remove(name)
            elif (root / base / name).is_symlink():
                names.append(name)
        for name in names:
            path = str(base / name)
            plain = (root / path).is_symlink() or (root / path).is_file()
            (paths.append if plain and not skip(path) else excluded.add)(path)
    return paths, excluded


def _ignore_rules(root: Path) -> tuple[Callable[[str], object], Callable[[str], object]]:
    """What the ignore file leaves out, and what it asks for by a negated pattern."""
    for name in _IGNORE_FILES:
        if (root / name).is_file():
            try:
                lines = (root / name).read_text(encoding="utf-8").splitlines()
                asked = [line[1:] for line in lines if line.startswith("!")]
                return _pattern_matcher((*lines, name)), _pattern_matcher(tuple(asked))
            except ValueError as error:  # no UTF-8, or no pattern
                raise TrainctlError(
                    f"cannot parse {name} in the code: {error}",
                    "Use the syntax of .gitignore.",
                    code="invalid-ignore-file",
                ) from None
    return _pattern_matcher(()), _pattern_matcher(())


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
                f"invalid file name {path!r} in the code",
                "Rename the file: control characters are not allowed.",
                code="unsafe-file-name",
            )
        if path in blobs:
            status = (root / path).stat()
            yield CodeFile(
                path, "x" if status.st_mode & stat.S_IXUSR else "-", status.st_size, blobs[path]
            )
        else:
            target = os.readlink(root / path)  # noqa: PTH115 (the text, not a path of ours)
            if _leaves(root, path, target):
                raise TrainctlError(
                    f"symlink {path} in the code leaves the code directory",
                    "Replace it with the file, or exclude it with .trainctlignore.",
                    code="code-outside",
                )
            text = os.fsencode(target)
            yield CodeFile(path, "l", len(text), _blob(text))


def _leaves(root: Path, path: str, target: str) -> bool:
    """Whether a link would lead out of the tree: here, or on a node, where the tree lies elsewhere."""
    lexical = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    outside = lexical == ".." or lexical.startswith(("../", "/"))
    return outside or not Path(os.path.realpath(root / path)).is_relative_to(root)


def _blob_ids(root: Path, paths: list[str], *, use_git: bool) -> list[str]:
    places = _git(root, "rev-parse", "--show-toplevel", "--show-prefix") if use_git else None
    if places is None or not paths or any("\n" in path for path in paths):
        return [_blob((root / path).read_bytes()) for path in paths]
    # hash-object takes the paths it reads as relative to the top of the work tree, wherever it is called.
    top, prefix = places.split(b"\n")[:2]
    names = b"".join(_quote_for_git(prefix + os.fsencode(path)) + b"\n" for path in paths)
    out = _git(Path(os.fsdecode(top)), "hash-object", "--stdin-paths", stdin=names)
    return (out or b"").decode("ascii").split()


def _quote_for_git(path: bytes) -> bytes:
    """A path as git reads it from a list: what begins with a quote must be quoted."""
    if not path.startswith(b'"'):
        return path
    return b'"' + path.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def _nfc(path: str) -> str:
    return unicodedata.normalize("NFC", path)


def _blob(data: bytes) -> str:
    """git's id of a blob (https://git-scm.com/book/en/v2/Git-Internals-Git-Objects)."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
