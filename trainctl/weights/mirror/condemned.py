"""What a collection is about to delete, out of sight of those who look for it, and how it comes back.

``condemned/<id>/`` belongs to one collection. A name in it is that of the file below the mirror, percent-encoded, so
that putting it back is one rename, which either wins against the deletion or finds nothing.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from trainctl.base import below
from trainctl.base.exclusive import holder_name
from trainctl.weights.mirror.layout import Layout

_LEFT = "left."
"""Begins the name of a directory that no collection has any more, and in which something lies that none has put there."""
_GONE_OR_TAKEN = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.EISDIR, errno.ENOTDIR)


class Condemned:
    """The condemned files of one collection."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._directory = layout.root / "condemned" / f"{holder_name()}.{secrets.token_hex(4)}"

    @classmethod
    @contextlib.contextmanager
    def of_one(cls, layout: Layout) -> Iterator[Condemned]:
        """For as long as a collection lasts: what is still condemned when it ends, as when it breaks off, is put back."""
        condemned = cls(layout)
        try:
            yield condemned
        finally:
            _empty(layout, condemned._directory)

    def announce(self) -> None:
        """Say that files are about to be condemned. To be done before the references are read that decide which: a writer
        whose reference is not among them finds this, and takes it away."""
        below.make_directory(self._layout.root, self._directory)

    def take(self, paths: Iterable[Path]) -> None:
        """Condemn files; those that are gone already are not missed. Nothing is taken once a writer took the announcement away."""
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                below.move(self._layout.root, path, self.place(path))

    def put_back(self, paths: Iterable[Path]) -> None:
        """Let files be found again."""
        for path in paths:
            _return(self._layout, self.place(path))

    def place(self, path: Path) -> Path:
        """Where a condemned file lies."""
        return self._directory / _name(self._layout, path)

    def delete(self, paths: Iterable[Path]) -> int:
        """Delete those that nobody took back meanwhile; the bytes freed."""
        return sum(_delete(self._layout, self.place(path)) for path in paths)


def condemned_by_others(layout: Layout, kind: str) -> Iterator[Path]:
    """Where everything lies that anybody has condemned of what is in the mirror's directory of that name; ``own_name`` tells what it is."""
    beginning = quote(f"{kind}/", safe="")
    found = (path for place in _places(layout) for path in _condemned(layout, place))
    return (path for path in found if path.name.startswith(beginning))


def own_name(path: Path) -> str:
    """The name that a file of a mirror has where it belongs, also while it is condemned."""
    return path.name.rpartition(quote("/", safe=""))[2]


def restore(layout: Layout) -> None:
    """Put everything back that anybody has condemned, and see to it that nobody who has not seen this process's reference
    condemns more: before a writer looks for content, and after a killed collection."""
    for place in _places(layout):
        _empty(layout, place)


def _empty(layout: Layout, directory: Path) -> None:
    """Put back all that is in there. Where something else is in it, too, the directory gets another name: its collection can condemn no more."""
    _put_back(layout, directory)
    if below.remove_empty(layout.root, directory) or directory.name.startswith(_LEFT):
        return
    aside = directory.with_name(f"{_LEFT}{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):
        below.move(layout.root, directory, aside)
    while _put_back(layout, aside):
        pass  # what its collection was just condemning; there is an end to that
    below.remove_empty(layout.root, aside)


def _put_back(layout: Layout, directory: Path) -> bool:
    """Listings last, so that one that can be seen has its contents. Whether anything came back."""
    found = sorted(_condemned(layout, directory), key=lambda path: path.name.startswith("listings"))
    return sum(_return(layout, path) for path in found) > 0


def _places(layout: Layout) -> list[Path]:
    """The directories of all collections."""
    return sorted(one.path for one in layout.inside("condemned"))


def _condemned(layout: Layout, directory: Path) -> Iterator[Path]:
    """What is in one of them: nothing that has another name than a collection gives."""
    return (one.path for one in layout.inside(f"condemned/{directory.name}"))


def _name(layout: Layout, path: Path) -> str:
    return quote(str(path.relative_to(layout.root)), safe="")


def _return(layout: Layout, condemned: Path) -> bool:
    """Where it came from is told by its name, which is one that a collection gives. Where that is no place any more, it stays."""
    path = layout.root / unquote(condemned.name)
    try:
        below.make_directory(layout.root, path.parent)
        below.move(layout.root, condemned, path)
    except OSError as error:
        if error.errno not in _GONE_OR_TAKEN:
            raise
        return False
    return True


def _delete(layout: Layout, path: Path) -> int:
    """The index of a pack goes first: nothing is found any more in what is left if this is killed."""
    if path.name.startswith("packs"):
        return below.remove_directory(layout.root, path, ("index", "data"))
    return below.remove(layout.root, path)
