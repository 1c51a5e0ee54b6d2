"""Keys for ssh: the login key of a cluster, kept by the client, and host keys derived from it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_TYPE = b"ssh-ed25519"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An ed25519 key pair; ``private`` is a file of OpenSSH, ``public`` is ``TYPE BASE64``."""

    private: str
    public: str


def data_directory(environ: Mapping[str, str]) -> Path:
    """Return the private directory of login keys and of unconfirmed launches."""
    home = Path(environ.get("HOME", "~")).expanduser()
    return Path(environ.get("XDG_DATA_HOME") or home / ".local/share") / "trainctl" / "aws"


def login_key_path(environ: Mapping[str, str], cluster: str, lineage: str) -> Path:
    """Return the file of a cluster's private login key."""
    name = hashlib.sha256(f"{lineage}/{cluster}".encode()).hexdigest()[:16]
    return data_directory(environ) / f"{cluster}-{name}.key"


def ensure_login_key(path: Path) -> KeyPair:
    """Return the login key in a file; create it first unless it exists. Concurrent callers agree."""
    if not path.exists():
        seed = os.urandom(32)
        _write_new(path, key_pair(seed).private)
    private = path.read_text()
    return key_pair(_seed_of(private))


def derive_host_key(login: KeyPair, token: str) -> KeyPair:
    """Return the host key of one launch.

    Each attempt at the launch derives the same key, as AWS requires equal parameters for one token.
    """
    seed = hmac.new(_seed_of(login.private), f"host key {token}".encode(), hashlib.sha256)
    return key_pair(seed.digest())


def key_pair(seed: bytes) -> KeyPair:
    """Return the key pair of a seed of 32 bytes; equal seeds give equal files."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    blob = _string(_TYPE) + _string(public)
    check = hashlib.sha256(b"check" + seed).digest()[:4]
    secret = check + check + blob + _string(seed + public) + _string(b"")
    secret += bytes(range(1, 1 + -len(secret) % 8))
    # https://github.com/openssh/openssh-portable/blob/master/PROTOCOL.key
    parts = (_string(b"none"), _string(b"none"), _string(b""), struct.pack(">I", 1))
    content = b"openssh-key-v1\0" + b"".join(parts) + _string(blob) + _string(secret)
    lines = base64.encodebytes(content).decode()
    private = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}-----END OPENSSH PRIVATE KEY-----\n"
    return KeyPair(private, f"{_TYPE.decode()} {base64.b64encode(blob).decode()}")


def _seed_of(private: str) -> bytes:
    """Return the seed of a private key that ``key_pair`` made."""
    content = base64.b64decode("".join(private.splitlines()[1:-1]))
    public = content.rindex(_string(_TYPE))
    start = public + len(_string(_TYPE)) + 4 + 32 + 4
    return content[start : start + 32]


def _string(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def _write_new(path: Path, text: str) -> None:
    """Create a file with mode 0600; keep a file that exists already."""
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    with contextlib.suppress(FileExistsError):
        path.hardlink_to(temporary)
    temporary.unlink()
