"""Training caches: read-write directories that states share; the last one to let go removes them. See DESIGN.md, "Training caches"."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any, Dict, List

from trainctl.base.failure import Failure
from trainctl.base.files import create_once, make_directory, names_in, read_json, remove_tree
from trainctl.base.lock import Lock
from trainctl.node.cache.references import References
from trainctl.node.system import layout as names
from trainctl.node.system.layout import Layout, inside

OURS = ".trainctl-cache"
"""The directory in a cache that tells who made it, who refers to it and what it was prepared with."""


class TrainingCache:
    """One directory of a ROOT's node, or one that many nodes see."""

    def __init__(self, layout: Layout, directory: Any) -> None:
        self.directory = names.absolute(directory, "directory")
        self._layout = layout
        self._references = References(layout)
        if inside(layout.root, self.directory):
            raise Failure("request", f"{self.directory} holds more than a training cache")

    def make(self, lineage: str, owner: str) -> None:
        """Make the directory, or find it; from now on it is kept for the owner: a resource of the lineage's state."""
        user = _user(lineage, owner)
        self._references.refer_cache(lineage, self._file(owner), str(self.directory))
        existed = self.directory.exists()
        make_directory(self._users)
        if not existed:
            create_once(self._made, b"")
        (self._users / user).touch(0o600)

    def release(self, lineage: str, owner: str = "") -> None:
        """Let go of it, in the name of the owner, or of all the lineage's."""
        self._references.drop_cache(lineage, self._file(owner))
        for user in names_in(self._users):
            if user == _user(lineage, owner) or (not owner and user.startswith(_user(lineage, ""))):
                with contextlib.suppress(FileNotFoundError):
                    (self._users / user).unlink()

    def others(self, lineage: str, owner: str) -> List[str]:
        """Who but the owner refers to it, as ``LINEAGE+OWNER``."""
        users = {*names_in(self._users), *self._references.cache_users(short_name(self.directory))}
        return sorted(users - {_user(lineage, owner)})

    @property
    def ours(self) -> bool:
        """Whether it may be removed: it was made here, or lies where only we make things."""
        return inside(self.directory, self._layout.root) or self._made.exists()

    def remove(self) -> int:
        """Remove it with all it holds, or of a directory that was there before us what is ours; the bytes freed."""
        if self.ours:
            return remove_tree(self.directory)
        remove_tree(self.directory / OURS)
        return 0

    def prepared(self, digest: str) -> bool:
        """Whether commands with this digest have prepared it as it is now."""
        return self._prepared(digest).exists()

    def mark_prepared(self, digest: str, key: str, name: str) -> None:
        """Say so, and by which run."""
        make_directory(self._prepared(digest).parent)
        create_once(self._prepared(digest), json.dumps({"run": key, "name": name}).encode())

    def prepared_by(self, digest: str) -> Dict[str, Any]:
        """The ``run`` that did, by its key, and its ``name`` for people; empty if nobody knows."""
        found = read_json(self._prepared(digest))
        return found if isinstance(found, dict) else {}

    def unprepare(self) -> None:
        """Something of it is gone: what prepared it has to do so again."""
        remove_tree(self.directory / OURS / "prepared")

    def _file(self, owner: str) -> str:
        return f"{short_name(self.directory)}-{owner}" if owner else short_name(self.directory)

    def _prepared(self, digest: str) -> Path:
        return self.directory / OURS / "prepared" / digest

    @property
    def _users(self) -> Path:
        return self.directory / OURS / "users"

    @property
    def _made(self) -> Path:
        return self.directory / OURS / "made"


def content_lock(layout: Layout, directory: Path) -> Lock:
    """The lock under which a cache is prepared or cleared on this node."""
    return Lock(make_directory(layout.training), short_name(directory))


def short_name(directory: Path) -> str:
    """A file name for a cache's directory."""
    return hashlib.sha256(str(directory).encode()).hexdigest()[:16]


def _user(lineage: str, owner: str) -> str:
    return f"{lineage}+{owner}"
