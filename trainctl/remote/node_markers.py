"""Markers of the keys that share a node, on its machine; on hosts run by ``python -I -c`` (3.8).

Arguments: a command and a request as JSON. Prints a line of JSON: the response, or ``error`` and ``path``.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping

_ATTEMPTS = 5
_REMOVING = ".going."
_NEEDED_PATHS = ("made", "cache/references")

Request = Mapping[str, Any]
HostScriptResponse = Dict[str, Any]


def marker_name(key: str) -> str:
    """Return the file name of a key's marker, the ``marker`` of a request."""
    return f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def create_marker(request: Request) -> HostScriptResponse:
    """Create a marker below ROOT, and check that no removal took it away."""
    marker = _marker(request)
    for _ in range(_ATTEMPTS):
        marker.parent.mkdir(0o700, parents=True, exist_ok=True)
        temporary = marker.with_name(f".{marker.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            with temporary.open("w") as stream:
                stream.write(json.dumps(request["text"]) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(marker)
        except FileNotFoundError:
            continue
        if marker.exists():
            return {"made": True}
    return {"made": False}


def remove_marker(request: Request) -> HostScriptResponse:
    """Remove a marker; with the last one all that no run or lineage needs, but DATA."""
    root, data = Path(request["root"]), Path(request["data"])
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        _marker(request).unlink()
    if not root.is_dir() or _is_needed(root):
        return {"removed": False}
    pending_removal = root / f"{_REMOVING}{os.getpid()}.{os.urandom(4).hex()}"
    pending_removal.mkdir(0o700)
    markers = root / "made"
    if markers.is_dir():
        markers.rename(pending_removal / "made")
    late = _entries(pending_removal / "made")
    for path in late:  # created between the check and the rename
        markers.mkdir(0o700, exist_ok=True)
        path.rename(markers / path.name)
    for path in _entries(root):
        if not (_is_needed(root) or path == data or path in data.parents):
            path.rename(pending_removal / path.name)
    for path in root.glob(f"{_REMOVING}*"):
        for directory, _, _ in os.walk(str(path)):  # whatever its modes
            Path(directory).chmod(0o700)
        shutil.rmtree(str(path), ignore_errors=True)
    for path in (data, root):
        with contextlib.suppress(OSError):  # unless empty
            path.rmdir()
    return {"removed": True}


def _marker(request: Request) -> Path:
    return Path(request["root"]) / "made" / str(request["marker"])


def _is_needed(root: Path) -> bool:
    """Return whether another marker, a lineage's reference or a run exists.

    Tombstones of runs that never started don't count: the program that could start them is removed, too.
    """
    runs = (path / "spec.json" for path in _entries(root / "runs"))
    return any(_entries(root / directory) for directory in _NEEDED_PATHS) or any(
        spec.exists() for spec in runs
    )


def _entries(directory: Path) -> List[Path]:
    """Return the entries of a directory, without hidden (temporary) names."""
    try:
        return [path for path in directory.iterdir() if not path.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


COMMANDS = {"make": create_marker, "remove": remove_marker}


def main() -> None:
    """Run the command in the arguments."""
    os.umask(0o077)
    try:
        response = COMMANDS[sys.argv[1]](json.loads(sys.argv[2]))
    except OSError as error:
        response = {"error": error.strerror, "path": str(error.filename or "")}
    sys.stdout.write(json.dumps(response) + "\n")


if __name__ == "__main__":
    main()
