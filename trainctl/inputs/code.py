"""Source code of a job: its files, their digest, and the archive for nodes."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import stat
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from trainctl.base.json import digest
from trainctl.base.lazy_dataclass import dataclass, field, replace
from trainctl.base.listing import LFS_POINTER
from trainctl.errors import TrainctlError
from trainctl.manifest.checkout import run_git
from trainctl.model.specs.job_spec import CodeSpec
from trainctl.plan.values import OUTPUT_MARK, CodeTree

if TYPE_CHECKING:
    import tarfile

DEFAULT_EXCLUDES = (
    ".git/", "__pycache__/", "*.pyc", ".venv/", "venv/", "node_modules/", ".mypy_cache/", ".pytest_cache/",
    ".ruff_cache/", ".ipynb_checkpoints/", ".DS_Store",
)  # fmt: skip
"""Excluded without git."""

_SENSITIVE_PATTERNS = (
    ".env*", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.p12", "*.pfx", ".netrc",
)  # fmt: skip
_ALWAYS_EXCLUDED = (
    ".git/", ".download-*/", ".trainctl/", "trainctl.lock", ".trainctl.lock.*", "trainctl.yaml", "trainctl.yml", "trainctl.toml",
    "*.trainctl.yaml", "*.trainctl.yml", "*.trainctl.toml", ".tmp??????",
)  # fmt: skip
SUBMODULE = "160000"  # mode in git
_IGNORE_FILES = (".trainctlignore", ".truss_ignore")
DOWNLOAD_MARK = ".trainctl-download"
"""Name of a file in downloaded directories, which are not code."""
_OWN_MARKS = (OUTPUT_MARK.encode(), b'"trainctl_plan"', b'"trainctl_version"')
_MARK_BYTES = 80
"""Files that trainctl wrote: one of the marks is in their first bytes."""


@dataclass(frozen=True, slots=True)
class CodeFile:
    """One file; ``kind`` is ``x``, ``-`` or ``l`` (symlink), ``blob`` a git id."""

    path: str
    kind: str
    size: int
    blob: str


@dataclass(frozen=True)
class CodeSource:
    """Source code of a job; ``excluded`` are files excluded without an ignore rule.

    ``external``: directories outside the root by their name in the code.
    """

    root: Path
    files: tuple[CodeFile, ...]
    excluded: tuple[str, ...] = ()
    external: Mapping[str, Path] = field(default_factory=dict)

    def locate(self, path: str) -> Path:
        """Return the file of a path in the code."""
        top, _, inner = path.partition("/")
        return self.external[top] / inner if top in self.external else self.root / path

    def empty_submodules(self) -> list[str]:
        """Return the submodules that aren't checked out."""
        places = {path: self.locate(path) for path in self.excluded if path.endswith("/")}
        empty = {path: p for path, p in places.items() if p.is_dir() and not any(p.iterdir())}
        rows = {path: run_git(p.parent, "ls-files", "-s", p.name) for path, p in empty.items()}
        return [path for path, row in rows.items() if (row or b"").startswith(SUBMODULE.encode())]

    @cached_property
    def tree(self) -> CodeTree:
        """Summary for the plan."""
        entries = sorted([_nfc(f.path), f.kind, f.blob] for f in self.files)
        return CodeTree(
            digest(entries), len(self.files), sum(f.size for f in self.files), self.excluded
        )

    @cached_property
    def blobs(self) -> dict[str, str]:
        """Kind and git id of each file, by path."""
        return {file.path: f"{file.kind} {file.blob}" for file in self.files}

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Kind of each file, by path."""
        return {file.path: file.kind for file in self.files}


def changed_files(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Name the first files that differ between two sets of ``CodeSource.blobs``."""
    names = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    words = {(True, True): "changed", (False, True): "new", (True, False): "removed"}
    shown = [f"{path} ({words[path in before, path in after]})" for path in names[:_MOST_NAMED]]
    more = len(names) - _MOST_NAMED
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


_MOST_NAMED = 5


def scan(
    directory: Path, code: str, reserved: Sequence[Path] = (), *, skipped: Sequence[str] = ()
) -> CodeSource:
    """List the files of a job's code, relative to the manifest's directory.

    ``reserved`` paths (resolved) are never code: files of secrets and directories of trainctl. ``skipped`` are
    names of directories in the code. Raises TrainctlError if a file is invalid.
    """
    try:
        root = code_directory(directory, code)
        reserved_directories = _directories(root, reserved)
        skip = (*reserved_directories, *(f"{name}/" for name in skipped))
        listed = _git_files(root)
        paths, excluded = _walk(root, skip) if listed is None else listed
        downloads = {
            f"{Path(path).parent}/" for path in paths if path.endswith(f"/{DOWNLOAD_MARK}")
        }
        excluded |= {path for path in reserved_directories if (root / path).is_dir()} | downloads
        is_ignored, is_negated = _ignore_rules(root)
        is_never = _name_matcher(_ALWAYS_EXCLUDED)
        is_sensitive = _name_matcher(_SENSITIVE_PATTERNS)
        included = []
        for path in paths:
            if (
                is_never(path)
                or path.startswith((*skip, *downloads))
                or is_ignored(path)
                or Path(os.path.realpath(root / path)) in reserved
            ):
                continue
            if is_sensitive(path) and not is_negated(path):
                excluded.add(path)
            elif not _is_own_output(root / path, path):
                included.append(path)
        files = tuple(_describe(root, sorted(included, key=_nfc), use_git=listed is not None))
        return CodeSource(root, files, tuple(sorted(p for p in excluded if not is_ignored(p))))
    except OSError as error:
        name = f"{error.filename} in the code" if error.filename else "the code"
        raise TrainctlError(
            f"cannot read {name}: {error.strerror}",
            "Make it readable, or exclude it with .trainctlignore.",
            code="unreadable-code",
        ) from error


@contextmanager
def pack(code: CodeSource) -> Iterator[Iterator[bytes]]:
    """Pack the code as a reproducible tar; yields pieces of 1 MiB.

    The files are read on entry; callers check before sending that they have not changed.
    """
    import tarfile  # both are slow to load, and plans don't pack
    import tempfile

    with tempfile.TemporaryFile() as spool:
        with tarfile.open(fileobj=spool, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for file in code.files:
                _add(tar, code.locate(file.path), file)
        spool.seek(0)
        yield iter(lambda: spool.read(2**20), b"")


def _add(tar: tarfile.TarFile, place: Path, file: CodeFile) -> None:
    import tarfile

    info = tarfile.TarInfo(_nfc(file.path))
    info.mode = 0o755 if file.kind == "x" else 0o644
    if file.kind == "l":
        info.type = tarfile.SYMTYPE
        info.linkname = os.readlink(place)  # noqa: PTH115 (text)
        tar.addfile(info)
        return
    with place.open("rb") as stream:
        info.size = os.fstat(stream.fileno()).st_size
        tar.addfile(info, stream)


def code_directory(directory: Path, code: str) -> Path:
    """Return a directory of code; TrainctlError if it is missing, or outside of the manifest's repository."""
    root, directory = (directory / code).resolve(), directory.resolve()
    if not root.is_dir():
        raise TrainctlError(
            f"code directory {code!r} not found",
            "Create it, or set `code` to a directory.",
            code="missing-code",
        )
    if root.is_relative_to(directory):
        return root
    top = run_git(directory, "rev-parse", "--show-toplevel")
    if top is None or not root.is_relative_to(Path(os.fsdecode(top).rstrip("\n")).resolve()):
        raise TrainctlError(
            f"code {code!r} is outside the manifest's directory",
            "Move it next to the manifest, or keep both in one git repository.",
            code="code-outside",
        )
    return root


def _directories(root: Path, reserved: Sequence[Path]) -> tuple[str, ...]:
    """Return reserved directories in the code; raise TrainctlError if it is one."""
    if root in reserved:
        raise TrainctlError(
            f"{root} is the code directory, and also contains files of trainctl",
            "Use a separate directory for the code or for those files.",
            code="stored-in-code",
        )
    inside = (path for path in reserved if path.is_relative_to(root) and not path.is_file())
    return tuple(sorted(f"{path.relative_to(root)}/" for path in inside))


def _git_files(root: Path) -> tuple[list[str], set[str]] | None:
    """Return existing files listed by git, also in submodules, and other repositories; None without git."""
    out = run_git(root, "ls-files", "-co", "--exclude-standard", "-z")
    if out is None:
        return None
    names = {os.fsdecode(name) for name in out.split(b"\0") if name}
    paths = [name for name in names if (root / name).is_symlink() or (root / name).is_file()]
    inner: set[str] = set()
    for name in names.difference(paths):
        # git lists a repository that isn't a submodule with a slash, and an empty submodule has no .git
        is_submodule = not name.endswith("/") and (root / name / ".git").exists()
        files, others = (is_submodule and _git_files(root / name)) or ([], {""})
        paths += [f"{name}/{path}" for path in files]
        if (root / name).is_dir():
            inner |= {f"{name.rstrip('/')}/{path}" for path in others}
    return paths, inner


@cache
def _pattern_matcher(lines: tuple[str, ...]) -> Callable[[str], object]:
    """Return a function that matches a path with the lines of an ignore file."""
    from pathspec import GitIgnoreSpec  # slow to load

    return GitIgnoreSpec.from_lines(lines).match_file


@cache
def _name_matcher(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """Return a function that matches a path with patterns of names, as an ignore file with them would.

    A pattern has ``*`` and ``?``; with a slash at its end, it stands for directories.
    """
    parts = []
    for pattern in patterns:
        name = re.escape(pattern.rstrip("/")).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        parts.append(f"{name}/" if pattern.endswith("/") else rf"{name}(?:/|\Z)")
    return re.compile(f"(?:^|/)(?:{'|'.join(parts)})").search if parts else lambda path: None


def _walk(root: Path, reserved: Sequence[str]) -> tuple[list[str], set[str]]:
    """Return files and default exclusions without git; skips reserved directories."""
    skip = _name_matcher(DEFAULT_EXCLUDES)
    paths: list[str] = []
    excluded: set[str] = set()
    for folder, folders, names in os.walk(root):
        base = Path(folder).relative_to(root)
        for name in tuple(folders):
            inside = f"{base / name}/"
            if inside in reserved:
                folders.remove(name)
            elif skip(inside):
                excluded.add(inside)
                folders.remove(name)
            elif (root / base / name).is_symlink():
                names.append(name)
        for name in names:
            path = str(base / name)
            is_file = (root / path).is_symlink() or (root / path).is_file()
            (paths.append if is_file and not skip(path) else excluded.add)(path)
    return paths, excluded


def _ignore_rules(root: Path) -> tuple[Callable[[str], object], Callable[[str], object]]:
    """Return matchers for the ignore file's patterns and for its negated patterns."""
    for name in _IGNORE_FILES:
        if (root / name).is_file():
            try:
                lines = (root / name).read_text(encoding="utf-8").splitlines()
                negated = [line[1:] for line in lines if line.startswith("!")]
                return _pattern_matcher((*lines, name)), _pattern_matcher(tuple(negated))
            except ValueError as error:  # not UTF-8, or an invalid pattern
                raise TrainctlError(
                    f"cannot parse {name} in the code: {error}",
                    "Use the syntax of .gitignore.",
                    code="invalid-ignore-file",
                ) from None
    return _name_matcher(()), _name_matcher(())


def _is_own_output(path: Path, name: str) -> bool:
    """Whether trainctl wrote the file; TrainctlError for a pointer of Git LFS."""
    if path.is_symlink():
        return False
    with path.open("rb") as stream:
        head = stream.read(_MARK_BYTES)
    if head.startswith(LFS_POINTER):
        raise TrainctlError(
            f"{name} in the code is a Git LFS pointer, not the file",
            "Run git lfs pull (in CI: checkout with lfs: true), or exclude it with .trainctlignore.",
            code="lfs-pointer",
        )
    return any(mark in head for mark in _OWN_MARKS)


def _describe(root: Path, paths: list[str], *, use_git: bool) -> Iterator[CodeFile]:
    files = [path for path in paths if not (root / path).is_symlink()]
    output = run_git(root, "rev-parse", "--show-toplevel", "--show-prefix") if use_git else None
    # hash-object reads paths relative to the top of the work tree, a line each; a quote begins a quoted path.
    top, prefix = (output or b"\n").split(b"\n")[:2]
    names = [prefix + os.fsencode(path) for path in files]
    if not (output and files) or any(b"\n" in name or name[:1] == b'"' for name in names):
        ids = [_blob((root / path).read_bytes()) for path in files]
    else:
        lines = b"".join(name + b"\n" for name in names)
        out = run_git(Path(os.fsdecode(top)), "hash-object", "--stdin-paths", stdin=lines)
        ids = (out or b"").decode("ascii").split()
    blobs = dict(zip(files, ids, strict=True))
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
            target = os.readlink(root / path)  # noqa: PTH115 (text)
            if _leaves(root, path, target):
                raise TrainctlError(
                    f"symlink {path} in the code leaves the code directory",
                    "Replace it with the file, or exclude it with .trainctlignore.",
                    code="code-outside",
                )
            text = os.fsencode(target)
            yield CodeFile(path, "l", len(text), _blob(text))


def _leaves(root: Path, path: str, target: str) -> bool:
    """Whether a symlink leads out of the tree, here or at another path on a node."""
    lexical = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    outside = lexical == ".." or lexical.startswith(("../", "/"))
    return outside or not Path(os.path.realpath(root / path)).is_relative_to(root)


def _nfc(path: str) -> str:
    return unicodedata.normalize("NFC", path)


def _blob(data: bytes) -> str:
    """Compute the git id: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def scan_code(directory: Path, code: CodeSpec, reserved: Sequence[Path] = ()) -> CodeSource:
    """List the files of a job's code; those of external directories are in a directory of their name."""
    root = (directory / code.path).resolve()
    skipped = [_child(directory, path, root) for path in code.exclude_dirs]
    source = scan(directory, code.path, reserved, skipped=skipped)
    external: dict[str, Path] = {}
    files, excluded = list(source.files), list(source.excluded)
    for path in code.external_dirs:
        place = (directory / path).resolve()
        if place.is_relative_to(root):
            continue  # already in the code
        name = place.name
        if name in external or ((root / name).exists() and name not in skipped):
            raise _invalid(f"external_dirs: the code has {name!r} already", path)
        inner = scan(directory, path, reserved)
        external[name] = inner.root
        files += [replace(file, path=f"{name}/{file.path}") for file in inner.files]
        excluded += [f"{name}/{file}" for file in inner.excluded]
    files.sort(key=lambda file: file.path)
    return replace(source, files=tuple(files), excluded=tuple(excluded), external=external)


def check_code(directory: Path, code: CodeSpec) -> None:
    """Raise TrainctlError if a directory of the code can't be part of it; read no files."""
    root = code_directory(directory, code.path)
    for path in code.exclude_dirs:
        _child(directory, path, root)
    for path in code.external_dirs:
        code_directory(directory, path)


def _child(directory: Path, path: str, root: Path) -> str:
    place = (directory / path).resolve()
    if place.parent != root:
        raise _invalid(f"exclude_dirs: {path} is not directly in the code directory", path)
    return place.name


def _invalid(summary: str, path: str) -> TrainctlError:
    detail = f"Rename or remove {path}. To exclude other files, use .trainctlignore."
    return TrainctlError(summary, detail, code="invalid-workspace")
