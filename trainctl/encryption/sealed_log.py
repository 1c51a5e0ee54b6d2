"""State log that encrypts another one, and memory of its highest position that this user has seen on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainctl.base.filesystem.files import make_directory, read_json, write_json
from trainctl.base.json import JsonObject
from trainctl.base.lazy_dataclass import replace
from trainctl.encryption.keys import SEALED, EncryptionKeys, not_encrypted_error
from trainctl.errors import StateError
from trainctl.plugin_api.state import LogSlice, StateLog


class SealedLog:
    """A log whose batches and snapshots are sealed; of its entries only the ids are in clear.

    Reading checks that each batch belongs to the position and the state, that none is missing, and that the log isn't
    older than ``memory``. Plain entries are refused, but in the history before the state was encrypted.
    """

    def __init__(self, log: StateLog, keys: EncryptionKeys, memory: PositionMemory) -> None:
        self._log = log
        self.keys = keys
        self.memory = memory
        self.admits_plain = False
        """Whether a state that isn't encrypted yet is read."""
        self._state = ""

    @property
    def url(self) -> str:
        """Location of the log."""
        return self._log.url

    def read(self, position: int = 0) -> LogSlice:
        """Read and decrypt; see ``StateLog``."""
        seen = self.memory.load()
        found = self._log.read(position)
        start: int | None = 0 if found.is_full_state else position
        snapshot = found.snapshot
        if snapshot is not None:
            if SEALED in snapshot:
                start, snapshot = self._open(snapshot[SEALED], "snapshot")
            elif self.admits_plain:
                start, self._state = None, str(snapshot.get("lineage"))
            else:
                raise self._not_encrypted()
        batches = list(self._open_all(found.entries, start, plain=self.admits_plain))
        end = batches[-1][0] if batches else start
        if end not in (None, found.next):
            raise self._corrupt(f"ends at position {end}, not {found.next}")
        self._check_end(seen, found.next)
        entries = tuple(entry for _, batch in batches for entry in batch)
        return replace(found, entries=entries, snapshot=snapshot)

    def append(self, position: int, entries: Sequence[JsonObject]) -> None:
        """Encrypt and append; see ``StateLog``."""
        if not self._state and position:
            self.read()
        first = entries[0] if entries else {}
        state = self._state or str(first.get("lineage") or first.get("id"))
        ids = [entry.get("id") for entry in entries]
        batch: list[dict[str, Any]] = [{"id": of_entry} for of_entry in ids]
        if batch:
            sealed = self.keys.seal(list(entries), state, "log", position, ids)
            batch[0][SEALED] = {"position": position, **sealed}
        self._log.append(position, batch)
        self._state = state
        self.memory.record(self.url, state, position + 1)

    def snapshot(self, position: int, state: JsonObject) -> None:
        """Encrypt and store; see ``StateLog``."""
        if not self._state:
            self.read()
        sealed = self.keys.seal(state, self._state, "snapshot", position)
        self._log.snapshot(position, {SEALED: {"position": position, **sealed}})

    def replay(self) -> Iterator[JsonObject]:
        """Yield all entries, also plain ones before the first sealed one; see ``StateLog``."""
        seen = self.memory.load()
        end: int | None = 0
        for end, batch in self._open_all(self._log.replay(), 0, plain=True):  # noqa: B007 (used below)
            yield from batch
        if end is not None:
            self._check_end(seen, end)
        elif not self.admits_plain:
            raise self._not_encrypted()

    def _open_all(
        self, entries: Iterable[JsonObject], position: int | None, *, plain: bool
    ) -> Iterator[tuple[int | None, list[JsonObject]]]:
        """Yield decrypted batches and the positions after them; None is unknown, after plain ones."""
        for batch in _batches(entries):
            if SEALED not in batch[0]:
                if not plain:
                    raise self._not_encrypted()
                self._state = self._state or str(batch[0].get("lineage") or batch[0].get("id"))
                position = None
                yield position, batch
                continue
            at, opened = self._open(batch[0][SEALED], "log", [entry["id"] for entry in batch])
            if position not in (None, at):
                raise self._corrupt(f"has the batch of position {at} at position {position}")
            position, plain = at + 1, False
            yield position, opened

    def _open(self, sealed: Any, kind: str, *context: Any) -> tuple[int, Any]:
        """Return the position and the value of a sealed object of this state."""
        position = sealed.get("position") if isinstance(sealed, dict) else None
        if not isinstance(position, int):
            raise self._corrupt(f"has an unreadable encrypted {kind}")
        name = f"{kind} {position} of the state at {self.url}"
        value = self.keys.unseal(sealed, name, kind, position, *context)
        if sealed["state"] != (self._state or sealed["state"]):
            raise self._corrupt(f"has a {kind} of another state at position {position}")
        self._state = sealed["state"]
        return position, value

    def _check_end(self, seen: tuple[str, int] | None, end: int) -> None:
        """Raise StateError if the log ends before the remembered end, or is another one; remember its end."""
        if seen is not None and (self._state != seen[0] or end < seen[1]):
            how = f"older than this machine has seen it: {end} appends of {seen[1]}"
            if end and self._state != seen[0]:
                how = "another one than this machine has seen there"
            raise StateError(
                f"the state at {self.url} is {how}",
                "It was deleted, or an old copy was put there. Restore the newest copy. If it is as it should be, accept it: trainctl state rekey --accept-older",
                code="state-rolled-back",
            )
        self.memory.record(self.url, self._state, end)

    def _corrupt(self, how: str) -> StateError:
        return StateError(
            f"the state is corrupt: {self.url} {how}",
            "Restore the complete state from a backup. Nothing was changed.",
            code="state-corrupt",
        )

    def _not_encrypted(self) -> StateError:
        return not_encrypted_error(f"the state at {self.url}")


def _batches(entries: Iterable[JsonObject]) -> Iterator[list[Any]]:
    """Split entries into sealed batches; plain entries before them are a batch, too."""
    batch: list[JsonObject] = []
    for entry in entries:
        if SEALED in entry and batch:
            yield batch
            batch = []
        batch.append(entry)
    if batch:
        yield batch


_: type[StateLog] = SealedLog


class PositionMemory:
    """The id and the end of one log, in a file. Write errors are ignored."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> tuple[str, int] | None:
        """Return id and end as last seen by any process; call it before reading the log."""
        found = read_json(self._path)
        return (str(found["state"]), int(found["end"])) if found else None

    def record(self, url: str, state: str, end: int) -> None:
        """Remember the end of a log, unless it was further already."""
        known, before = self.load() or (state, -1)
        if state and (known != state or end > before):
            with suppress(OSError):
                path = make_directory(self._path.parent) / self._path.name
                write_json(path, {"url": url, "state": state, "end": end}, durable=False)

    def forget(self) -> None:
        """Accept any log from now on."""
        self._path.unlink(missing_ok=True)
