"""Memory of the highest position of a state that this user has seen on this machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from trainctl.base.filesystem.files import make_directory, read_json, write_json
from trainctl.errors import StateError


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


def require_newer(url: str, seen: tuple[str, int] | None, state: str, end: int) -> None:
    """Raise StateError if a log ends before the remembered end, or is another one."""
    if seen is None or (state == seen[0] and end >= seen[1]):
        return
    if end and state != seen[0]:
        how = "another one than this machine has seen there"
    else:
        how = f"older than this machine has seen it: {end} appends of {seen[1]}"
    raise StateError(
        f"the state at {url} is {how}",
        "It was deleted, or an old copy was put there. Restore the newest copy. If it is as it should be, accept it: trainctl state rekey --accept-older",
        code="state-rolled-back",
    )
