"""``extends``: a file of defaults that several manifests share; see DESIGN.md."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainctl.errors import StorageError
from trainctl.manifest.files import UnreadableManifest, file_bytes, unreadable
from trainctl.manifest.tree import ManifestNode, mapping_node
from trainctl.model.credentials import url_has_credential
from trainctl.model.diagnostics import Diagnostic, error, of_error

NAMED_SECTIONS = frozenset({"vars", "secrets", "clusters", "weights", "caches"})
"""Sections whose entries are merged by name; a manifest's own other section replaces the shared one."""
_SECTIONS = NAMED_SECTIONS | {"version", "state", "mirror", "checkpoints", "policies"}
_SUFFIXES = (".yaml", ".yml", ".toml")
_GIT = re.compile(r"git::((?:https|ssh)://[^?#\s]+?[^/:])//([^?#\s]+)\?ref=([0-9a-f]{40})")


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
