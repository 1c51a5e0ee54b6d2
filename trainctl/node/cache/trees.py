"""Trees: the files of a listing as hard links to blobs, sealed when they are whole."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from pathlib import Path
from typing import AbstractSet, List, Set

from trainctl.base.filesystem.files import (
    make_directory,
    make_durable,
    remove_tree,
    temporary_name,
    write_json,
)
from trainctl.base.listing import ListedFile, Listing
from trainctl.node.system.blob_files import is_stamped, matches_file, stamp
from trainctl.node.system.layout import Layout

_READ_ONLY = 0o555
STAGE = "tree-"
"""What the name of a tree that is being made begins with; the listing's id follows."""
REMOVED = ".gone-"
"""The same of a tree that is being removed."""
MAX_CHECKED_FILES = 256
"""Up to so many files of a sealed tree are looked at on every use."""


class ListingTrees:
    """The trees under one ROOT."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def is_complete(self, listing_id: str) -> bool:
        """Whether the tree is whole, going by its seal."""
        return self._layout.completion_marker(listing_id).exists()

    def is_intact(self, listing: Listing, *, thoroughly: bool) -> bool:
        """Whether a sealed tree still looks as it did; a large one is looked at only ``thoroughly``."""
        if not self.is_complete(listing.id):
            return False
        if len(listing.files) > MAX_CHECKED_FILES and not thoroughly:
            return True
        return all(self._right(self._layout.tree(listing.id), file) for file in listing.files)

    def build(self, listing: Listing, source: str) -> None:
        """Link the listing's blobs, which must be here, and seal the tree; one that exists is mended in place."""
        tree = self._layout.tree(listing.id)
        for completion_marker in (
            self._layout.pending_marker(listing.id),
            self._layout.completion_marker(listing.id),
        ):
            with contextlib.suppress(FileNotFoundError):
                completion_marker.unlink()
        if tree.is_dir():
            self._fill(tree, listing)
        else:
            stage = self._layout.partial / f"{STAGE}{listing.id}"
            make_directory(stage)
            self._fill(stage, listing)
            stage.replace(tree)
            tree.chmod(_READ_ONLY)
        inner = [tree / relative for relative in _directories(listing)]
        make_durable([tree, tree.parent, *inner], tree)
        about = {"files": len(listing.files), "bytes": listing.size, "source": source}
        write_json(self._layout.completion_marker(listing.id), about)

    def adopt(self, listing: Listing) -> None:
        """Give blobs whose name is gone their name again, from the listing's tree."""
        if not self._layout.tree(listing.id).is_dir():
            return
        for file in listing.files:
            path = self._layout.tree(listing.id) / file.path
            blob = Path(self._layout.files.blob(file.sha256))
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, FileExistsError):
                if not blob.exists() and is_stamped(path.lstat(), file):
                    make_directory(blob.parent)
                    os.link(path, blob, follow_symlinks=False)

    def corrupt_files(self, listing: Listing, wrong: AbstractSet[str]) -> List[str]:
        """The paths of files that are missing in a tree, or have other bytes than the listing says; ``wrong`` are contents that do."""
        tree = self._layout.tree(listing.id)
        return [file.path for file in listing.files if not self._is_right(tree, file, wrong)]

    def _is_right(self, tree: Path, file: ListedFile, wrong: AbstractSet[str]) -> bool:
        """A file that shares no inode with its blob, which was verified, is hashed itself; a wrong one loses its stamp."""
        path = tree / file.path
        try:
            status = path.lstat()
            with contextlib.suppress(FileNotFoundError):
                blob = os.lstat(self._layout.files.blob(file.sha256))
                if os.path.samestat(status, blob) and file.sha256 not in wrong:
                    return True
            if stat.S_ISREG(status.st_mode) and matches_file(path, file):
                return True
            os.utime(path, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            pass
        return False

    def clear_completion(self, listing_id: str) -> None:
        """Put the seal aside, so that nobody begins to use the tree. The listing's lock is held."""
        with contextlib.suppress(FileNotFoundError):
            self._layout.completion_marker(listing_id).replace(
                self._layout.pending_marker(listing_id)
            )

    def restore_marker(self, listing_id: str) -> None:
        """Put a seal back that was put aside, if the tree is still there. The listing's lock is held.

        A tree is removed by one rename, so one that is there is what the seal says, whoever was killed at it.
        """
        aside, completion_marker = (
            self._layout.pending_marker(listing_id),
            self._layout.completion_marker(listing_id),
        )
        with contextlib.suppress(FileNotFoundError):
            if self._layout.tree(listing_id).is_dir() and not completion_marker.exists():
                aside.replace(completion_marker)
            else:
                aside.unlink()

    def remove(self, listing_id: str) -> int:
        """Remove a tree whose seal is gone already, and what is left of it where somebody was killed at that; the bytes that only it held."""
        remove_tree(self._layout.partial / f"{STAGE}{listing_id}")
        pending_removal = self._layout.partial / f"{REMOVED}{listing_id}"
        freed = remove_tree(pending_removal)
        with contextlib.suppress(FileNotFoundError):
            self._layout.tree(listing_id).chmod(0o700)
            self._layout.tree(listing_id).replace(pending_removal)
        return freed + remove_tree(pending_removal)

    def _right(self, tree: Path, file: ListedFile) -> bool:
        try:
            here = os.lstat(f"{tree}/{file.path}")
            blob = os.lstat(self._layout.files.blob(file.sha256))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return is_stamped(here, file) and (os.path.samestat(here, blob) or here.st_nlink == 1)

    def _fill(self, tree: Path, listing: Listing) -> None:
        """Make the directory hold the listing and nothing else; every single step leaves whole files only."""
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
            if not self._right(tree, file):
                self._link(f"{tree}/{file.path}", file)
        for relative in directories:
            (tree / relative).chmod(_READ_ONLY)
        if tree == self._layout.tree(listing.id):
            tree.chmod(_READ_ONLY)

    def _link(self, name: str, file: ListedFile) -> None:
        blob = self._layout.files.blob(file.sha256)
        with contextlib.suppress(OSError):  # something is in the way, or too many links
            os.link(blob, name)
            return
        path = Path(name)
        temporary = path.with_name(temporary_name("link"))
        try:
            os.link(blob, temporary)
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            # There are so many equal files that the inode has no room for one more.
            shutil.copyfile(blob, temporary)
            temporary.chmod(0o444)
            os.utime(temporary, (stamp(file.sha256), stamp(file.sha256)))
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        temporary.replace(path)


def _directories(listing: Listing) -> Set[str]:
    found: Set[str] = set()
    for file in listing.files:
        parts = file.path.split("/")[:-1]
        found.update("/".join(parts[:count]) for count in range(1, len(parts) + 1))
    return found


def _remove_extra_files(tree: Path, listing: Listing, directories: Set[str]) -> None:
    for directory, inner, names in os.walk(str(tree)):
        base = Path(directory).relative_to(tree)
        for name in sorted(names):  # so that neighbours are looked for together
            if (base / name).as_posix() not in listing.paths:
                Path(directory, name).unlink()
        kept: List[str] = []
        for name in inner:
            if (base / name).as_posix() in directories:
                kept.append(name)
            elif Path(directory, name).is_symlink():
                Path(directory, name).unlink()
            else:
                remove_tree(Path(directory, name))
        inner[:] = kept
