"""Keys of machines, read by OpenSSH and cryptography."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cryptography.hazmat.primitives import serialization

from trainctl_ssh.keys import derive_host_key, ensure_login_key, key_pair


def test_a_key_file_is_one_of_openssh() -> None:
    """Equal seeds give equal files, as a repeated request must equal the first."""
    pair = key_pair(b"s" * 32)
    key = serialization.load_ssh_private_key(pair.private.encode(), None)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    assert public.decode() == pair.public
    assert key_pair(b"s" * 32) == pair


def test_a_login_key_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "lab.key"
    with ThreadPoolExecutor(8) as pool:
        pairs = set(pool.map(lambda _: ensure_login_key(path), range(16)))

    assert len(pairs) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_host_keys_differ_by_launch_and_login_key(tmp_path: Path) -> None:
    first, second = ensure_login_key(tmp_path / "a"), ensure_login_key(tmp_path / "b")
    keys = {derive_host_key(first, "1"), derive_host_key(first, "2"), derive_host_key(second, "1")}
    assert len(keys) == 3
    assert derive_host_key(first, "1") in keys
