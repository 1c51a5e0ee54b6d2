"""A private directory with a short path, for control sockets and pinned keys.

A socket's path is limited to 104 bytes (sys/un.h of macOS; 108 on Linux), of which ssh takes 17 for a temporary name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

_LONGEST = 103 - 17 - len("/12345678")
PIN = "trainctl-pinned"
"""The name under which ``pinned`` writes a key: ssh's HostKeyAlias."""


def directory(environ: Mapping[str, str]) -> Path:
    """The directory, the same one every time; a new one where others could have put something into it."""
    for path in _candidates(environ):
        with contextlib.suppress(OSError):
            if len(os.fsencode(path)) <= _LONGEST:
                path.mkdir(0o700, exist_ok=True)
                if _is_private(path):
                    return path
    return Path(tempfile.mkdtemp(prefix="trainctl-", dir="/tmp"))


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("XDG_RUNTIME_DIR"):
        yield Path(environ["XDG_RUNTIME_DIR"]) / "trainctl"
    yield Path(f"/tmp/trainctl-{os.getuid()}")  # noqa: S108 - looked at before it is used


def _is_private(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def pinned(place: Path, host_key: str) -> Path:
    """A file of known hosts that knows this key only, named by its content."""
    name = hashlib.sha256(host_key.encode()).hexdigest()[:16]
    path = place / f"pin-{name}"
    if not path.exists():
        temporary = path.with_name(f".{name}.{os.getpid()}.{os.urandom(4).hex()}")
        temporary.write_text(f"{PIN} {host_key}\n")
        temporary.replace(path)
    return path
