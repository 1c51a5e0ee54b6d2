"""What S3 told of sha256s, which its listings don't: kept on this machine, so that nobody asks for each object at every plan.

A file for each listing, of lines ``[path, size, ETag, sha256]`` in the order in which S3 lists, that of the paths' UTF-8 bytes. It is read
along with the listing, and replaced when that was read to its end, so memory doesn't grow with it. An object that was replaced has
another ETag, and is asked for again. Without the file, and where it can't be read or written, all that is lost is time.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Generator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from trainctl.base.json import hex_digest
from trainctl.base.listing import SourceFile

_HEX_DIGITS = 64
_Row = list[Any]


def place_of_checksums(environ: Mapping[str, str], *listing: str | None) -> Path | None:
    """The file for a listing, in the user's cache, which may be deleted at any time; None where nobody has a home."""
    caches = environ.get("XDG_CACHE_HOME") or (
        f"{environ['HOME']}/.cache" if environ.get("HOME") else None
    )
    return Path(caches, "trainctl", "checksums", hex_digest(listing)) if caches else None


class Remembered:
    """To be closed. Files are given in the order of their listing, first to ``known``, then to ``note``; ``keep`` when all were."""

    def __init__(self, place: Path | None) -> None:
        self._place = place
        self._rows = _rows(place)
        self._row = next(self._rows, None)
        self._draft: IO[str] | None = None
        self._is_news = False

    def known(self, files: Iterable[SourceFile]) -> dict[str, SourceFile]:
        """By path those of which it is known, each with its sha256."""
        found = {}
        for file in files:
            while self._row is not None and _order(self._row[0]) < _order(file.path):
                self._row = next(self._rows, None)
            if self._row is not None and self._row[:3] == [file.path, file.size, file.validator]:
                found[file.path] = replace(file, validator=f"sha256:{self._row[3]}")
        return found

    def note(self, listed: SourceFile, told: SourceFile, *, is_news: bool) -> None:
        """Keep what was told of a file, if that is a digest."""
        if told.sha256 is None or self._place is None:
            return
        self._is_news = self._is_news or is_news
        row = [listed.path, listed.size, listed.validator, told.sha256]
        try:
            if self._draft is None:
                self._place.parent.mkdir(parents=True, exist_ok=True)
                draft = self._place.with_name(f"{self._place.name}.{secrets.token_hex(4)}")
                self._draft = draft.open("w", encoding="ascii")
            self._draft.write(json.dumps(row) + "\n")
        except OSError:
            self._drop()
            self._place = None

    def keep(self) -> None:
        """From now on this is what is known."""
        if self._draft is not None and self._place is not None and self._is_news:
            with contextlib.suppress(OSError):
                self._draft.flush()
                Path(self._draft.name).replace(self._place)

    def close(self) -> None:
        """Leave no draft behind."""
        self._rows.close()
        self._drop()

    def _drop(self) -> None:
        draft, self._draft = self._draft, None
        if draft is not None:
            with contextlib.suppress(OSError):
                draft.close()
            with contextlib.suppress(OSError):
                Path(draft.name).unlink(missing_ok=True)


def _rows(place: Path | None) -> Generator[_Row, None, None]:
    """Until one is damaged."""
    if place is None:
        return
    with (
        contextlib.suppress(OSError, ValueError),
        place.open(encoding="ascii", errors="replace") as lines,
    ):
        for line in lines:
            row = json.loads(line)
            match row:
                case [str(), int(), str(), str(digest)] if _is_digest(digest):
                    yield row
                case _:
                    return


def _is_digest(text: str) -> bool:
    return len(text) == _HEX_DIGITS and not text.strip("0123456789abcdef")


def _order(path: str) -> bytes:
    return path.encode("utf-8", "surrogatepass")
