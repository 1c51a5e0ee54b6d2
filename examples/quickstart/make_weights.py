"""Makes weights/: the tiny model that train.py starts from. The same bytes every time, on any machine.

Run it in this directory: python3 make_weights.py
"""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

WIDTH = 64
SHAPES = {"character.weight": (256, WIDTH), "pair.weight": (1024, WIDTH)}


def main() -> None:
    """Write the weights, the configuration and the vocabulary."""
    folder = Path(__file__).parent / "weights"
    folder.mkdir(exist_ok=True)
    chance = random.Random(20240601)  # noqa: S311 (made to be repeatable)
    header, body = {}, b""
    for name, (rows, columns) in SHAPES.items():
        values = [chance.random() - 0.5 for _ in range(rows * columns)]
        data = struct.pack(f"<{len(values)}f", *values)
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": offsets}
        body += data
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + body)
    config = {"model_type": "tiny-char", "width": WIDTH, "pairs": SHAPES["pair.weight"][0]}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    vocabulary = [chr(code) for code in range(32, 127)]
    (folder / "vocab.json").write_text(json.dumps(vocabulary) + "\n")


if __name__ == "__main__":
    main()
