"""What is done on a host to make it a node, and to unmake it. Standard library, Python 3.8: ``python -I -c`` reads it there.

Arguments: VERB and a request as JSON. Prints one line of JSON: the answer, or ``error`` and ``path``.
"""

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


def create_marker(request: Request) -> HostScriptResponse:
    """Leave a marker under ROOT, and check that it stayed: the directory may be removed at this moment."""
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


def read_markers(request: Request) -> HostScriptResponse:
    """What every marker says."""
    said = map(_read, _entries(Path(request["root"]) / "made"))
    return {"marks": [one for one in said if one is not None]}


def remove_marker(request: Request) -> HostScriptResponse:
    """Take the marker away, and everything else with the last one, but DATA and what runs or lineages need."""
    root, data = Path(request["root"]), Path(request["data"])
    _unlink(_marker(request))
    if not root.is_dir() or _is_needed(root):
        return {"removed": False}
    pending_removal = root / f"{_REMOVING}{os.getpid()}.{os.urandom(4).hex()}"
    pending_removal.mkdir(0o700)
    made = root / "made"
    if made.is_dir():
        made.rename(pending_removal / "made")
    late = _entries(pending_removal / "made")
    for path in late:  # a run came between the look and the rename
        made.mkdir(0o700, exist_ok=True)
        path.rename(made / path.name)
    for path in _entries(root):
        if not (_is_needed(root) or path == data or path in data.parents):
            path.rename(pending_removal / path.name)
    for path in root.glob(f"{_REMOVING}*"):
        _erase(path)
    for path in (data, root):
        _remove_empty(path)
    return {"removed": True}


def _marker(request: Request) -> Path:
    return Path(request["root"]) / "made" / str(request["marker"])


def _is_needed(root: Path) -> bool:
    """Whether another marker, a lineage's reference or a run is there. What only forbids the start of a run that never came is none:
    with everything else goes the program that would start it."""
    runs = (path / "spec.json" for path in _entries(root / "runs"))
    return any(_entries(root / place) for place in _NEEDED_PATHS) or any(
        spec.exists() for spec in runs
    )


def _entries(place: Path) -> List[Path]:
    """What is in a directory, but for hidden names: those are being written, or going."""
    try:
        return [path for path in place.iterdir() if not path.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _unlink(path: Path) -> None:
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return


def _remove_empty(path: Path) -> None:
    try:
        path.rmdir()
    except OSError:
        return


def _erase(path: Path) -> None:
    """Remove a directory whatever the modes in it are."""
    for directory, _, _ in os.walk(str(path)):
        Path(directory).chmod(0o700)
    shutil.rmtree(str(path), ignore_errors=True)


COMMANDS = {"make": create_marker, "marks": read_markers, "remove": remove_marker}


def main() -> None:
    """Do what the arguments say."""
    try:
        answer = COMMANDS[sys.argv[1]](json.loads(sys.argv[2]))
    except OSError as error:
        answer = {"error": error.strerror, "path": str(error.filename or "")}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
