"""Trains a small head on frozen features to guess the next character. Needs nothing but Python."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import struct
from pathlib import Path

STEPS = 150
SAVE_EVERY = 50
BATCH = 32

Rows = list[tuple[float, ...]]


def read_safetensors(path: Path) -> dict[str, Rows]:
    """Every matrix of a safetensors file, as rows of floats."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    matrices = {}
    for name, entry in header.items():
        rows, columns = entry["shape"]
        begin = 8 + length + entry["data_offsets"][0]
        width = columns * 4
        matrices[name] = [
            struct.unpack_from(f"<{columns}f", data, begin + row * width) for row in range(rows)
        ]
    return matrices


def make_examples(weights: Path, text: str, symbols: list[str]) -> list[tuple[list[float], int]]:
    """For each character: the features of the two before it, and which character it is."""
    model = read_safetensors(weights / "model.safetensors")
    characters, pairs = model["character.weight"], model["pair.weight"]
    examples = []
    for before, last, following in zip(text, text[1:], text[2:], strict=False):
        pair = pairs[(ord(before) * 31 + ord(last)) % len(pairs)]
        features = [a + b for a, b in zip(characters[ord(last) % 256], pair, strict=True)]
        examples.append((features, symbols.index(following)))
    return examples


def cached_examples(weights: Path, text: str, symbols: list[str]) -> list[tuple[list[float], int]]:
    """The same from the training cache, where an earlier run has left them."""
    cache = os.environ.get("BT_PROJECT_CACHE_DIR")
    if not cache:
        return make_examples(weights, text, symbols)
    config = (weights / "config.json").read_bytes()
    key = hashlib.sha256(config + text.encode()).hexdigest()[:16]
    place = Path(cache) / f"examples-{key}.json"
    if place.exists():
        print(f"training cache: found {place.name}", flush=True)
        return [(features, label) for features, label in json.loads(place.read_text())]
    examples = make_examples(weights, text, symbols)
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(examples))
    partial.replace(place)
    print(f"training cache: made {place.name}", flush=True)
    return examples


def train_step(head: list[list[float]], batch: list[tuple[list[float], int]], lr: float) -> float:
    """One step of softmax regression; returns the mean loss before it."""
    loss = 0.0
    for features, label in batch:
        scores = [sum(map(float.__mul__, row, features)) for row in head]
        top = max(scores)
        powers = [math.exp(score - top) for score in scores]
        total = sum(powers)
        loss -= math.log(powers[label] / total)
        for index, power in enumerate(powers):
            error = lr * (power / total - (index == label))
            if abs(error) > 1e-4:
                head[index] = [w - error * f for w, f in zip(head[index], features, strict=True)]
    return loss / len(batch)


def save(head: list[list[float]], symbols: list[str], step: int, loss: float) -> None:
    """A checkpoint appears whole or not at all: it is written aside and renamed."""
    folder = Path(os.environ["BT_CHECKPOINT_DIR"]) / f"checkpoint-{step}"
    partial = folder.with_name(f".{folder.name}")
    partial.mkdir(parents=True, exist_ok=True)
    values = [value for row in head for value in row]
    shape = [len(head), len(head[0])]
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * len(values)]}
    header = json.dumps({"head.weight": entry}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    body = struct.pack("<Q", len(header)) + header + struct.pack(f"<{len(values)}f", *values)
    (partial / "model.safetensors").write_bytes(body)
    (partial / "symbols.json").write_text(json.dumps(symbols))
    (partial / "trainer_state.json").write_text(json.dumps({"global_step": step, "loss": loss}))
    partial.rename(folder)
    print(f"saved {folder.name}", flush=True)


def main() -> None:
    """Read the flags, train, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--lr", type=float, default=1.0)
    flags = parser.parse_args()
    text = (Path(__file__).parent / "corpus.txt").read_text()
    symbols = sorted(set(text))
    examples = cached_examples(flags.weights, text, symbols)
    head = [[0.0] * len(examples[0][0]) for _ in symbols]
    print(f"{len(examples)} examples, {len(symbols)} symbols, lr {flags.lr}", flush=True)
    losses = []
    for step in range(1, STEPS + 1):
        begin = step * BATCH % (len(examples) - BATCH)
        losses.append(train_step(head, examples[begin : begin + BATCH], flags.lr / BATCH))
        if step % 25 == 0:
            print(f"step {step} loss {sum(losses[-25:]) / 25:.4f}", flush=True)
        if step % SAVE_EVERY == 0:
            save(head, symbols, step, losses[-1])


if __name__ == "__main__":
    main()
