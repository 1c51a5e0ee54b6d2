"""Listings on a node: documents, references of lineages, and trees of hard links to blobs."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from pathlib import Path
from typing import AbstractSet, BinaryIO, Iterable, Iterator, List, Optional, Set

from trainctl.base.filesystem.files import (
    list_names,
    make_directory,
    make_durable,
    modified_at,
    remove_tree,
    temporary_name,
    write_atomic,
    write_json,
)
from trainctl.base.listing import ListedFile, Listing
from trainctl.base.protocol.wire import decode_rows
from trainctl.errors import NodeError
from trainctl.node.system.blob_files import is_stamped, matches_file, stamp
from trainctl.node.system.layout import Layout

_ARRIVAL_FILE = "here.json"


def receive_listings(ids: Iterable[str], stream: BinaryIO) -> List[Listing]:
    """Read the rows of these listings, which follow a request; TrainctlError if invalid."""
    listings: List[Listing] = []
    for listing_id, rows in zip(ids, decode_rows(stream)):
        try:
            listing = Listing.of_rows(rows)
            listing.check()
        except ValueError as error:
            raise NodeError(f"invalid listing: {error}") from None
        if listing.id != listing_id:
            raise NodeError(f"the listing's id is {listing.id}, expected {listing_id!r}")
        listings.append(listing)
    return listings


def load_listing(path: Path) -> Optional[Listing]:
    """Read a listing's document; None if it is missing, corrupt or not the named one."""
    try:
        listing = Listing.from_bytes(path.read_bytes())
        listing.check()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return listing if listing.id == path.stem else None


class CacheReferences:
    """References of lineages to the listings and training caches of one cache."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def refer(self, lineage: str, listing: Listing, owner: str) -> None:
        """Record a lineage's need of a listing before inspecting it; store its document.

        The reference's mtime is the last use.
        """
        directory = make_directory(self._layout.references / lineage)
        path = directory / f"{listing.id}.json"
        try:
            os.utime(path)
        except FileNotFoundError:
            write_json(path, {"owner": owner})
        document = self._layout.listing(listing.id)
        if not document.exists():
            write_atomic(make_directory(document.parent) / document.name, listing.iter_bytes())

    def announce(self, lineage: str) -> None:
        """Protect a lineage's uploaded files before its first delivery."""
        path = make_directory(self._layout.references / lineage) / _ARRIVAL_FILE
        if not path.exists():
            write_json(path, {})

    def drop(self, lineage: str) -> None:
        """Drop all references of a lineage, to listings and training caches."""
        remove_tree(self._layout.references / lineage)

    def drop_listings(self, lineage: str) -> None:
        """Drop a lineage's references to listings; the others stay."""
        for name in list_names(self._layout.references / lineage):
            if _is_listing(name):
                with contextlib.suppress(FileNotFoundError):
                    (self._layout.references / lineage / name).unlink()

    def lineages(self) -> List[str]:
        """Lineages with at least one reference."""
        names = list_names(self._layout.references)
        return [name for name in names if list_names(self._layout.references / name)]

    def listings(self) -> Set[str]:
        """Ids of all referenced listings."""
        return {
            Path(name).stem
            for lineage in self.lineages()
            for name in list_names(self._layout.references / lineage)
            if _is_listing(name)
        }

    def refers(self, listing_id: str) -> bool:
        """Check whether any lineage refers to the listing."""
        return any(map(modified_at, self._to(listing_id)))

    def last_used(self, listing_id: str) -> float:
        """Time of the listing's last delivery in Unix seconds; 0 if unreferenced."""
        return max(map(modified_at, self._to(listing_id)), default=0.0)

    def drop_listing(self, listing_id: str) -> None:
        """Drop all references to a removed listing, and its document."""
        for path in self._to(listing_id):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
        self.drop_document(listing_id)

    def drop_document(self, listing_id: str) -> None:
        """Remove the document of an unreferenced listing."""
        if not self.refers(listing_id):
            with contextlib.suppress(FileNotFoundError):
                self._layout.listing(listing_id).unlink()

    def _to(self, listing_id: str) -> Iterator[Path]:
        """Paths of possible references. Unlike a glob, fails on unreadable directories."""
        names = list_names(self._layout.references)
        return (self._layout.references / name / f"{listing_id}.json" for name in names)


def _is_listing(name: str) -> bool:
    return not name.startswith((".", "cache-")) and name != _ARRIVAL_FILE


_READ_ONLY = 0o555
STAGE = "tree-"
"""Prefix of a tree that is being built; the listing's id follows."""
REMOVED = ".gone-"
"""Prefix of a tree that is being removed."""
MAX_CHECKED_FILES = 256
"""Trees with up to this many files are checked on every use."""


class ListingTrees:
    """Trees under one root directory."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def is_complete(self, listing_id: str) -> bool:
        """Check for the tree's completion marker."""
        return self._layout.completion_marker(listing_id).exists()

    def is_intact(self, listing: Listing, *, thoroughly: bool) -> bool:
        """Check a complete tree's files; skip large trees unless ``thoroughly``."""
        if not self.is_complete(listing.id):
            return False
        if len(listing.files) > MAX_CHECKED_FILES and not thoroughly:
            return True
        return all(self._is_linked(self._layout.tree(listing.id), file) for file in listing.files)

    def build(self, listing: Listing, source: str) -> None:
        """Link the listing's blobs, which must be present, and mark the tree as complete."""
        tree = self._layout.tree(listing.id)
        for path in (self._layout.pending_marker, self._layout.completion_marker):
            with contextlib.suppress(FileNotFoundError):
                path(listing.id).unlink()
        if tree.is_dir():
            self._fill(tree, listing)
        else:
            stage = make_directory(self._layout.partial / f"{STAGE}{listing.id}")
            self._fill(stage, listing)
            stage.replace(tree)
            tree.chmod(_READ_ONLY)
        inner = [tree / relative for relative in _directories(listing)]
        make_durable([tree, tree.parent, *inner], tree)
        about = {"files": len(listing.files), "bytes": listing.size, "source": source}
        write_json(self._layout.completion_marker(listing.id), about)

    def adopt(self, listing: Listing) -> None:
        """Restore missing blobs from the listing's tree."""
        if not self._layout.tree(listing.id).is_dir():
            return
        for file in listing.files:
            path = self._layout.tree(listing.id) / file.path
            blob = Path(self._layout.files.blob(file.sha256))
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, FileExistsError):
                if not blob.exists() and is_stamped(path.lstat(), file):
                    make_directory(blob.parent)
                    os.link(path, blob, follow_symlinks=False)

    def corrupt_files(self, listing: Listing, corrupt: AbstractSet[str]) -> List[str]:
        """Paths of missing and corrupt files; ``corrupt`` are digests of corrupt blobs.

        Files are verified by their blob; copies are hashed, and lose their stamp if they are corrupt.
        """
        paths = []
        for file in listing.files:
            path = self._layout.tree(listing.id) / file.path
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                status = path.lstat()
                with contextlib.suppress(FileNotFoundError):
                    blob = os.lstat(self._layout.files.blob(file.sha256))
                    if os.path.samestat(status, blob) and file.sha256 not in corrupt:
                        continue
                if stat.S_ISREG(status.st_mode) and matches_file(path, file):
                    continue
                os.utime(path, follow_symlinks=False)
            paths.append(file.path)
        return paths

    def restore_marker(self, listing_id: str) -> None:
        """Restore a marker that was moved aside if the tree still exists.

        Needs the listing's lock.

        Trees are removed by one rename: a tree that exists is complete, even if a removal was interrupted.
        """
        aside = self._layout.pending_marker(listing_id)
        completion_marker = self._layout.completion_marker(listing_id)
        with contextlib.suppress(FileNotFoundError):
            if self._layout.tree(listing_id).is_dir() and not completion_marker.exists():
                aside.replace(completion_marker)
            else:
                aside.unlink()

    def remove(self, listing_id: str) -> int:
        """Remove a tree without marker, and remains of a removal; bytes freed."""
        remove_tree(self._layout.partial / f"{STAGE}{listing_id}")
        pending_removal = self._layout.partial / f"{REMOVED}{listing_id}"
        freed = remove_tree(pending_removal)
        with contextlib.suppress(FileNotFoundError):
            self._layout.tree(listing_id).chmod(0o700)
            self._layout.tree(listing_id).replace(pending_removal)
        return freed + remove_tree(pending_removal)

    def _is_linked(self, tree: Path, file: ListedFile) -> bool:
        try:
            entry = os.lstat(f"{tree}/{file.path}")
            blob = os.lstat(self._layout.files.blob(file.sha256))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return is_stamped(entry, file) and (os.path.samestat(entry, blob) or entry.st_nlink == 1)

    def _fill(self, tree: Path, listing: Listing) -> None:
        """Make the directory hold exactly the listing's files; each step is atomic."""
        directories = _directories(listing)
        tree.chmod(0o700)
        for relative in sorted(directories):
            directory = tree / relative
            if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
                directory.unlink()
            directory.mkdir(0o700, exist_ok=True)
            directory.chmod(0o700)
        _remove_extra_files(tree, listing, directories)
        for file in listing.files:
            if not self._is_linked(tree, file):
                self._link(f"{tree}/{file.path}", file)
        for relative in directories:
            (tree / relative).chmod(_READ_ONLY)
        if tree == self._layout.tree(listing.id):
            tree.chmod(_READ_ONLY)

    def _link(self, name: str, file: ListedFile) -> None:
        blob = self._layout.files.blob(file.sha256)
        with contextlib.suppress(OSError):  # the name exists, or too many links
            os.link(blob, name)
            return
        path = Path(name)
        temporary = path.with_name(temporary_name("link"))
        try:
            os.link(blob, temporary)
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            # Too many equal files for the links of one inode.
            shutil.copyfile(blob, temporary)
            temporary.chmod(0o444)
            os.utime(temporary, (stamp(file.sha256), stamp(file.sha256)))
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        temporary.replace(path)


def _directories(listing: Listing) -> Set[str]:
    directories: Set[str] = set()
    for file in listing.files:
        names = file.path.split("/")[:-1]
        directories.update("/".join(names[:count]) for count in range(1, len(names) + 1))
    return directories


def _remove_extra_files(tree: Path, listing: Listing, directories: Set[str]) -> None:
    for top, inner, names in os.walk(str(tree)):
        base = Path(top).relative_to(tree)
        for name in sorted(names):  # neighbours are close in the sorted listing
            if (base / name).as_posix() not in listing.paths:
                Path(top, name).unlink()
        for name in [name for name in inner if (base / name).as_posix() not in directories]:
            inner.remove(name)
            if Path(top, name).is_symlink():
                Path(top, name).unlink()
            else:
                remove_tree(Path(top, name))
