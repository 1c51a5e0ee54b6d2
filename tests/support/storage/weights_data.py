"""Bytes that are the same every time."""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR


def noise(size: int, seed: int = 0) -> bytes:
    """So many bytes without pattern; the same for the same seed."""
    key = hashlib.sha256(b"%d" % seed).digest()
    return Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(size))


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 123\n" % 0
