"""Temporary files that nobody else sees, for what memory should not grow with."""

from __future__ import annotations

import contextlib
import errno
import weakref
from typing import IO, Iterator


def temporary_file(owner: object) -> IO[bytes]:
    """One that is gone when its owner is; errors as of ``named_if_full``."""
    from tempfile import TemporaryFile  # heavy, and few have so many rows

    with named_if_full():
        file = TemporaryFile()  # noqa: SIM115  its owner's end closes it
    weakref.finalize(owner, _discard, file)
    return file


def _discard(file: IO[bytes]) -> None:
    """Close it. What a full disk had no room for, nobody reads any more."""
    with contextlib.suppress(OSError):
        file.close()


@contextlib.contextmanager
def named_if_full() -> Iterator[None]:
    """Around what writes to them: the OSError of a full disk names their directory, as they have no names themselves."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename:
            raise
        from tempfile import gettempdir

        raise OSError(error.errno, error.strerror, gettempdir()) from None
