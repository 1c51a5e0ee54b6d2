"""What a collection is about to delete, out of sight of those who look for it, and how it comes back.

``condemned/<id>/`` belongs to one collection. A name in it is that of the file below the mirror, percent-encoded, so
that putting it back is one rename, which either wins against the deletion or finds nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from trainctl.node.system.files import names_in
from trainctl.node.system.sharing import make_directory
from trainctl.weights.exclusive import holder_name
from trainctl.weights.mirror.layout import Layout


class Condemned:
    """The condemned files of one collection."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._directory = _place(layout) / f"{holder_name()}.{secrets.token_hex(4)}"

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
        make_directory(self._directory)

    def take(self, paths: Iterable[Path]) -> None:
        """Condemn files; those that are gone already are not missed. Nothing is taken once a writer took the announcement away."""
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                path.rename(self.place(path))

    def put_back(self, paths: Iterable[Path]) -> None:
        """Let files be found again."""
        for path in paths:
            _return(self.place(path), path)

    def place(self, path: Path) -> Path:
        """Where a condemned file lies."""
        return self._directory / _name(self._layout, path)

    def delete(self, paths: Iterable[Path]) -> int:
        """Delete those that nobody took back meanwhile; the bytes freed."""
        return sum(_delete(self.place(path)) for path in paths)


def condemned_by_others(layout: Layout, kind: str) -> Iterator[Path]:
    """Where everything lies that anybody has condemned of what is in the mirror's directory of that name; ``own_name`` tells what it is."""
    beginning = quote(f"{kind}/", safe="")
    for name in names_in(_place(layout)):
        with contextlib.suppress(FileNotFoundError), os.scandir(_place(layout) / name) as entries:
            yield from (Path(one.path) for one in entries if one.name.startswith(beginning))


def own_name(path: Path) -> str:
    """The name that a file of a mirror has where it belongs, also while it is condemned."""
    return path.name.rpartition(quote("/", safe=""))[2]


def restore(layout: Layout) -> None:
    """Put everything back that anybody has condemned, and see to it that nobody who has not seen this process's reference
    condemns more: before a writer looks for content, and after a killed collection."""
    for name in names_in(_place(layout)):
        _empty(layout, _place(layout) / name)


def _empty(layout: Layout, directory: Path) -> None:
    while not _emptied(layout, directory):
        pass  # its collection condemned more just now; there is an end to what it can


def _emptied(layout: Layout, directory: Path) -> bool:
    """Listings last, so that one that can be seen has its contents. False if the directory is in use again."""
    try:
        found = sorted(directory.iterdir(), key=lambda path: path.name.startswith("listings"))
    except FileNotFoundError:  # another writer was faster
        return True
    for path in found:
        _return(path, layout.root / unquote(path.name))
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return False
    return True


def _place(layout: Layout) -> Path:
    return layout.root / "condemned"


def _name(layout: Layout, path: Path) -> str:
    return quote(str(path.relative_to(layout.root)), safe="")


def _return(condemned: Path, path: Path) -> None:
    make_directory(path.parent)
    with contextlib.suppress(FileNotFoundError):
        condemned.rename(path)


def _delete(path: Path) -> int:
    if path.is_dir():
        return _delete_pack(path)
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size


def _delete_pack(path: Path) -> int:
    """The index goes first: nothing is found any more in what is left if this is killed."""
    (path / "index").unlink(missing_ok=True)
    size = _delete(path / "data")
    shutil.rmtree(path, ignore_errors=True)
    return size
