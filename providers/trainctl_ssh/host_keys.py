"""Host keys: fingerprints, known hosts, changed keys; and a private directory."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trainctl.errors import NodeUnreachable
from trainctl_ssh.connection_errors import key_mismatch_error
from trainctl_ssh.hosts import SshLogin

_SECONDS = 60
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_OFFENDING = re.compile(r"Offending \S+ key in (.+):(\d+)")
_REMOVE = re.compile(r"^\s*(ssh-keygen .*-R .*)$", re.MULTILINE)


def fingerprint(blob: bytes) -> str:
    """Return the fingerprint as OpenSSH prints it, ``SHA256:`` and unpadded base64."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def parse_fingerprint(text: str) -> str:
    """Return the fingerprint of a key ``[NAMES] TYPE BASE64``; empty if there is none."""
    for word in text.split():
        if word.startswith("AAAA"):
            try:
                return fingerprint(base64.b64decode(word))
            except ValueError:
                return ""
    return ""


def key_changed_error(node_label: str, login: SshLogin, stderr: str) -> NodeUnreachable:
    """Return the error for a changed host key, from ssh's messages."""
    match = _FINGERPRINT.search(stderr)
    now = match.group() if match else ""
    if login.host_key:
        fix = "set host_key in the manifest to the new key."
        return key_mismatch_error(node_label, now, parse_fingerprint(login.host_key), fix)
    offending = _OFFENDING.search(stderr)
    remove = _REMOVE.search(stderr)
    fix = remove.group(1).strip() if remove else f"ssh-keygen -R {login.address}"
    return key_mismatch_error(node_label, now, _line(offending) if offending else "", fix)


def _line(offending: re.Match[str]) -> str:
    try:
        lines = Path(offending.group(1)).read_text(errors="replace").splitlines()
        return parse_fingerprint(lines[int(offending.group(2)) - 1])
    except (OSError, IndexError):
        return ""


def scan_host_key(
    ssh: Sequence[str], destination: Sequence[str], environ: Mapping[str, str]
) -> str:
    """Return the known-hosts line of a host's present key; empty without one.

    No key of the user's is offered to the unknown host.
    """
    with tempfile.TemporaryDirectory(prefix="trainctl-") as directory:
        path = Path(directory) / "known_hosts"
        options = (
            f"UserKnownHostsFile={path}",
            "GlobalKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=accept-new",
            "UpdateHostKeys=no",
            "PreferredAuthentications=none",
            "ControlPath=none",
        )
        words = [word for option in options for word in ("-o", option)]
        subprocess.run(
            [ssh[0], *words, *ssh[1:], *destination, "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environ,
            start_new_session=True,
            timeout=_SECONDS,
            check=False,
        )
        return path.read_text() if path.exists() else ""


def known_hosts_files(named: str) -> list[Path]:
    """Split a ``UserKnownHostsFile`` value of ``ssh -G``, which omits quotes."""
    names = re.split(r"\s+(?=[/~])", named.replace('"', "").strip())
    return [Path(name).expanduser() for name in names]


def append_known_host(line: str, known_hosts: Path) -> None:
    """Append a line to a known-hosts file by a single write."""
    known_hosts.parent.mkdir(0o700, parents=True, exist_ok=True)
    descriptor = os.open(known_hosts, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "rb+", buffering=0) as stream:
        end = stream.seek(0, os.SEEK_END)
        last = os.pread(descriptor, 1, end - 1) if end else b"\n"
        text = line if line.endswith("\n") else f"{line}\n"
        stream.write((b"" if last == b"\n" else b"\n") + text.encode())


_MAX_SOCKET_PATH = 103 - 17 - len("/12345678")
"""Socket paths are limited to 104 bytes (sys/un.h of macOS; 108 on Linux); ssh appends 17 for a temporary name."""
PIN = "trainctl-pinned"
"""HostKeyAlias under which ``pinned_known_hosts`` writes a key."""


def private_directory(environ: Mapping[str, str]) -> Path:
    """Return a private directory with a short path, if possible always the same."""
    for path in _candidates(environ):
        with contextlib.suppress(OSError):
            if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
                path.mkdir(0o700, exist_ok=True)
                if _is_private(path):
                    return path
    return Path(tempfile.mkdtemp(prefix="trainctl-", dir="/tmp"))


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("XDG_RUNTIME_DIR"):
        yield Path(environ["XDG_RUNTIME_DIR"]) / "trainctl"
    yield Path(f"/tmp/trainctl-{os.getuid()}")  # noqa: S108 - checked before use


def _is_private(path: Path) -> bool:
    status = path.lstat()
    return (
        stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    )


def pinned_known_hosts(directory: Path, host_key: str) -> Path:
    """Return a known-hosts file with this key only, named by its content."""
    name = hashlib.sha256(host_key.encode()).hexdigest()[:16]
    path = directory / f"pin-{name}"
    if not path.exists():
        temporary = path.with_name(f".{name}.{os.getpid()}.{os.urandom(4).hex()}")
        temporary.write_text(f"{PIN} {host_key}\n")
        temporary.replace(path)
    return path
