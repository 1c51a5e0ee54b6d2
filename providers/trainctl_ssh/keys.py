"""Keys of created machines: the login key of a cluster, kept by the client, and host keys.

A machine that gets its host key in user data replaces it at the first login by one that is made there and never leaves it.
Order: the machine makes the key; ``next-host-key`` of its records names it; sshd uses it; ``host-key`` names it. After a
kill in between, the machine has one of the two recorded keys.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Callable
from pathlib import Path

from trainctl.base.filesystem.files import create_exclusive
from trainctl.base.lazy_dataclass import dataclass
from trainctl.errors import NodeError
from trainctl.plugin_api.provider import Node, Transport
from trainctl.remote.responses import printable_tail

HOST_KEY, NEXT_HOST_KEY = "host-key", "next-host-key"
"""Names of records of a machine: its public host key, and the one that it will have."""
_CHECK, _SEED = slice(98, 106), slice(161, 193)
"""Where a key file has a number, twice, which is random otherwise, and the seed: PROTOCOL.key of OpenSSH."""
_MAKE_KEY = """\
set -e; umask 077; key=/etc/ssh/trainctl_host_key
exec 9>$key.lock; flock 9
if [ ! -e $key.pub ]; then
    rm -f $key.new $key.new.pub
    ssh-keygen -q -t ed25519 -N '' -C '' -f $key.new
    mv $key.new $key; mv $key.new.pub $key.pub
fi
cut -d' ' -f1,2 $key.pub
"""
_USE_KEY = """\
set -e; umask 077; key=/etc/ssh/trainctl_host_key; used=/etc/ssh/ssh_host_ed25519_key
exec 9>$key.lock; flock 9
cp $key.pub $used.new.pub; cp $key $used.new
mv $used.new.pub $used.pub; mv $used.new $used; chmod 644 $used.pub
kill -HUP "$(cat /run/sshd.pid 2>/dev/null)" 2>/dev/null || systemctl reload ssh sshd 2>/dev/null || :
"""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An ed25519 key pair; ``private`` is a file of OpenSSH, ``public`` is ``TYPE BASE64``."""

    private: str
    public: str


def data_directory(provider: str) -> Path:
    """Return the private directory of a provider's login keys."""
    home = Path(os.environ.get("HOME", "~")).expanduser()
    return Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share") / "trainctl" / provider


def login_key_path(provider: str, cluster: str, lineage: str) -> Path:
    """Return the file of a cluster's private login key."""
    name = hashlib.sha256(f"{lineage}/{cluster}".encode()).hexdigest()[:16]
    return data_directory(provider) / f"{cluster}-{name}.key"


def ensure_login_key(path: Path) -> KeyPair:
    """Return the login key in a file; create it first unless it exists. Concurrent callers agree."""
    if not path.exists():
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        create_exclusive(path, key_pair(os.urandom(32)).private.encode())
    return key_pair(_seed_of(path.read_text()))


def derive_host_key(login: KeyPair, token: str) -> KeyPair:
    """Return the host key of one launch; each attempt at it derives the same key."""
    seed = hmac.new(_seed_of(login.private), f"host key {token}".encode(), hashlib.sha256)
    return key_pair(seed.digest())


def key_pair(seed: bytes) -> KeyPair:
    """Return the key pair of a seed of 32 bytes; equal seeds give equal files."""
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(seed)
    encoded = (forms.Encoding.PEM, forms.PrivateFormat.OpenSSH, forms.NoEncryption())
    first, *lines, last = key.private_bytes(*encoded).splitlines(keepends=True)
    content = bytearray(base64.b64decode(b"".join(lines)))
    content[_CHECK] = 2 * hashlib.sha256(b"check" + seed).digest()[:4]
    private = b"".join((first, base64.encodebytes(content), last)).decode()
    public = key.public_key().public_bytes(forms.Encoding.OpenSSH, forms.PublicFormat.OpenSSH)
    return KeyPair(private, public.decode())


def _seed_of(private: str) -> bytes:
    """Return the seed of a private key that ``key_pair`` made."""
    content = base64.b64decode("".join(private.splitlines()[1:-1]))
    return content[_SEED]


def replace_host_key(transport: Transport, node: Node, record: Callable[[str, str], None]) -> str:
    """Make the machine use a host key of its own, and return that; ``record`` stores keys by name."""
    key = run_as_root(transport, node, _MAKE_KEY, "replace the host key")
    record(NEXT_HOST_KEY, key)
    run_as_root(transport, node, _USE_KEY, "replace the host key")
    record(HOST_KEY, key)
    return key


def run_as_root(transport: Transport, node: Node, script: str, purpose: str) -> str:
    """Run a script as root and return its output; NodeError "cannot ``purpose``" if it fails."""
    sudo = () if node.details.get("user") == "root" else ("sudo", "-n")
    output = transport.run([*sudo, "sh", "-c", script], timeout=60)
    if output.exit_code != 0:
        raise NodeError(
            f"cannot {purpose} on {node.id}",
            printable_tail(output.stderr) or "The login user must be allowed to use sudo.",
        )
    return output.stdout.decode().strip()
