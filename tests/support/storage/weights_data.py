"""Small weights: files in the safetensors format, and bytes that are the same every time."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Mapping, Sequence

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR


def noise(size: int, seed: int = 0) -> bytes:
    """So many bytes without pattern; the same for the same seed."""
    key = hashlib.sha256(b"%d" % seed).digest()
    return Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(size))


def safetensors(tensors: Mapping[str, Sequence[float]]) -> bytes:
    """A safetensors file of one-dimensional F32 tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, values in tensors.items():
        data = struct.pack(f"<{len(values)}f", *values)
        header[name] = {
            "dtype": "F32",
            "shape": [len(values)],
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def small_model(seed: int = 0, weights: int = 4096) -> dict[str, bytes]:
    """The files of a model repository: weights, configuration, tokenizer."""
    values = random.Random(seed)
    return {
        "model.safetensors": safetensors(
            {
                "embed.weight": [values.uniform(-1, 1) for _ in range(weights)],
                "head.bias": [0.0] * 8,
            }
        ),
        "config.json": json.dumps({"hidden_size": 8, "seed": seed}).encode(),
        "tokenizer/vocab.txt": b"hello\nworld\n",
    }
