"""What memory must not grow with: texts by digest, in a temporary file that nobody else sees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

_AT_ONCE = 500


class DiskMap:
    """Texts by hex digest; for one thread at a time. What is small never leaves memory."""

    def __init__(self) -> None:
        import sqlite3  # heavy: only who needs such a map pays for it

        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute(
            "CREATE TABLE texts (digest BLOB PRIMARY KEY, text TEXT) WITHOUT ROWID"
        )

    def update(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Put texts in; one that is there already is replaced."""
        rows = ((bytes.fromhex(digest), text) for digest, text in pairs)
        self._database.execute("BEGIN")
        self._database.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?)", rows)
        self._database.execute("COMMIT")

    def find(self, digests: Iterable[str]) -> dict[str, str]:
        """Those of the digests that are in it, with their texts."""
        wanted = iter(digests)
        found: dict[str, str] = {}
        while some := [bytes.fromhex(one) for one in islice(wanted, _AT_ONCE)]:
            marks = ",".join("?" * len(some))
            rows = self._database.execute(
                f"SELECT digest, text FROM texts WHERE digest IN ({marks})",  # noqa: S608 - marks alone
                some,
            )
            found.update((digest.hex(), text) for digest, text in rows)
        return found

    def __contains__(self, digest: str) -> bool:
        return bool(self.find((digest,)))

    def __len__(self) -> int:
        (count,) = self._database.execute("SELECT count(*) FROM texts").fetchone()
        return int(count)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """All of it, by digest."""
        rows = self._database.execute("SELECT digest, text FROM texts ORDER BY digest")
        return ((digest.hex(), text) for digest, text in rows)


def disk_map(texts: Mapping[str, str]) -> DiskMap:
    """One that holds these."""
    made = DiskMap()
    made.update(texts.items())
    return made
