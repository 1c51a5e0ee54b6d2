"""Files of a manifest, and the file that it extends (``extends``); see DESIGN.md."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, overload

from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.errors import StorageError
from trainctl.model.credentials import url_has_credential
from trainctl.model.diagnostics import Diagnostic, Position, error, of_error

if TYPE_CHECKING:
    from trainctl.manifest.tree import ManifestNode

MAX_FILE_BYTES = 2**20

_FILE = compile_lazily(r"(?:.+\.)?trainctl\.(?:yaml|yml|toml)")

_YAML_LINE_END = compile_lazily("\r\n|[\n\r\x85\u2028\u2029]")
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


class FileLines(Sequence[str]):
    """The lines of a file as the parser of its format counts them, split when a position is shown."""

    def __init__(self, text: str | bytes, name: str) -> None:
        self._text = text
        self._name = name

    @cached_property
    def _lines(self) -> list[str]:
        text = self._text.decode() if isinstance(self._text, bytes) else self._text
        return text.split("\n") if self._name.endswith(".toml") else _YAML_LINE_END.split(text)

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._lines[index]


NAMED_SECTIONS = frozenset({"vars", "secrets", "clusters", "weights", "caches"})
"""Sections whose entries are merged by name; a manifest's own other section replaces the shared one."""
_SECTIONS = NAMED_SECTIONS | {"version", "state", "mirror", "checkpoints", "policies"}
_SUFFIXES = (".yaml", ".yml", ".toml")
_GIT = compile_lazily(r"git::((?:https|ssh)://[^?#\s]+?[^/:])//([^?#\s]+)\?ref=([0-9a-f]{40})")


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file of another git repository at a commit."""

    url: str
    path: str
    commit: str

    @property
    def name(self) -> str:
        """Name in positions: ``platform//defaults.yaml@1a2b3c4d``."""
        name = self.url.rstrip("/").rpartition("/")[2].removesuffix(".git")
        return f"{name}//{self.path}@{self.commit[:8]}"


@dataclass(frozen=True, slots=True)
class ExtendedFile:
    """The file that a manifest extends: name in positions, place on disk, sha256 of its content."""

    name: str
    path: str
    sha256: str

    def read(self) -> bytes:
        """Return the content; raise OSError, or ValueError if it has changed."""
        data = Path(self.path).read_bytes()
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ValueError(self.path)
        return data


Fetch = Callable[[PinnedFile], Path]
"""Returns a local copy; raises StorageError offline, SourceError, or PermissionDenied."""


def load(node: ManifestNode, directory: Path, fetch: Fetch) -> tuple[ExtendedFile, bytes]:
    """Read the file that ``extends`` names; raise UnreadableManifest, and errors of ``fetch`` if online."""
    text = node.value
    pinned = _parse(node, text) if "://" in str(text) or str(text).startswith("git:") else None
    if not isinstance(text, str) or not (pinned.path if pinned else text).endswith(_SUFFIXES):
        raise _refused(node, "expected the path or URL of a .yaml or .toml file")
    if pinned:
        try:
            name, path = pinned.name, fetch(pinned)
        except StorageError as failure:
            raise UnreadableManifest(of_error(failure, where=node.where)) from None
    else:
        name, path = os.path.normpath(text), _local(node, text, directory)
    data = file_bytes(path, name)
    return ExtendedFile(name, str(path), hashlib.sha256(data).hexdigest()), data


def merge(
    own: ManifestNode, shared: ManifestNode, problems: list[Diagnostic]
) -> tuple[ManifestNode, frozenset[tuple[str, str]]]:
    """Add the sections of an extended file; own names win. Returns also the names it adds."""
    from trainctl.manifest.tree import mapping_node

    entries, keys = dict(own.entries), dict(own.keys)
    added: set[tuple[str, str]] = set()
    for section, node in shared.entries.items():
        where, mine = shared.key_position(section), own.entries.get(section)
        if section not in _SECTIONS:
            allowed = f"Allowed: {', '.join(sorted(_SECTIONS - {'policies'}))}."
            summary = f"{section!r} can't be in an extended file"
            problems.append(error(summary, allowed, where=where, code="invalid-extends"))
        elif mine is None:
            entries[section], keys[section] = node, where
            added.update((section, name) for name in node.entries)
        elif section in NAMED_SECTIONS and {type(mine.value), type(node.value)} == {dict}:
            new = {name: item for name, item in node.entries.items() if name not in mine.entries}
            both = {**mine.entries, **new}
            entries[section] = mapping_node(both, {**node.keys, **mine.keys}, mine.where)
            added.update((section, name) for name in new)
    url = shared.entries["state"].entries.get("url") if "state" in shared.entries else None
    if url and "state" not in own.entries and "project.name" not in str(url.value):
        summary = "state.url of an extended file is the same for all projects"
        advice = (
            "Add ${{ project.name }} to it: projects in one state delete each other's resources."
        )
        problems.append(error(summary, advice, where=url.where, code="shared-state"))
    return mapping_node(entries, keys, own.where), frozenset(added)


def _local(node: ManifestNode, text: str, directory: Path) -> Path:
    """Return the path in the repository, or without git in the manifest's directory."""
    here = directory.resolve()
    root = next((top for top in (here, *here.parents) if (top / ".git").exists()), here)
    path = (here / text).resolve()
    if "\0" in text or Path(text).is_absolute() or not path.is_relative_to(root):
        raise _refused(node, f"{text} is outside {root}")
    return path


def _parse(node: ManifestNode, value: object) -> PinnedFile:
    git = _GIT.fullmatch(str(value))
    if git is None:
        raise _refused(node, "the file of another repository is not pinned")
    if url_has_credential(git[1]):
        raise _refused(node, "the URL contains a credential", code="credential")
    return PinnedFile(*git.groups())


def _refused(node: ManifestNode, why: str, *, code: str = "invalid-extends") -> UnreadableManifest:
    advice = "Use a file in this repository, or git::https://HOST/REPOSITORY.git//FILE?ref=COMMIT with a complete commit ID."
    return unreadable(f"extends: {why}", advice, where=node.where, code=code)
