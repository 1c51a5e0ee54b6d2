"""A bigram model: how likely each character is after another one. Needs nothing but Python.

It is saved as a Llama model without layers, of which a bigram model is a special case.
"""

import itertools
import json
import math
import os
import struct
from pathlib import Path

SYMBOLS = " .abcdefghijklmnopqrstuvwxyz"
SIZE = len(SYMBOLS)

Scores = list[list[float]]


def read_texts() -> dict[str, str]:
    """The texts that data.py has made."""
    return json.loads((Path(os.environ["BT_PROJECT_CACHE_DIR"]) / "texts.json").read_text())


def pairs_of(text: str) -> list[tuple[int, int]]:
    """Each character with the one after it, as numbers."""
    numbers = [SYMBOLS.index(character) for character in text]
    return list(itertools.pairwise(numbers))


def chances(scores: list[float]) -> list[float]:
    """The softmax of one row."""
    powers = [math.exp(score) for score in scores]
    return [power / sum(powers) for power in powers]


def loss_of(model: Scores, pairs: list[tuple[int, int]]) -> float:
    """The mean cross entropy, in nats a character."""
    rows = [chances(row) for row in model]
    return -sum(math.log(rows[before][after]) for before, after in pairs) / len(pairs)


def save(model: Scores, directory: Path) -> None:
    """Write a model of transformers; it appears whole or not at all."""
    partial = directory.with_name(f".{directory.name}")
    partial.mkdir(parents=True, exist_ok=True)
    unit = [float(row == column) for row in range(SIZE) for column in range(SIZE)]
    head = [model[before][after] for after in range(SIZE) for before in range(SIZE)]
    tensors = {
        "model.embed_tokens.weight": ([SIZE, SIZE], unit),
        "model.norm.weight": ([SIZE], [1 / math.sqrt(SIZE)] * SIZE),
        "lm_head.weight": ([SIZE, SIZE], head),
    }
    (partial / "model.safetensors").write_bytes(safetensors(tensors))
    for name, content in (("config.json", CONFIG), ("tokenizer.json", TOKENIZER)):
        (partial / name).write_text(json.dumps(content, indent=1))
    partial.rename(directory)


def load(directory: Path) -> Scores:
    """Read what ``save`` wrote."""
    data = (directory / "model.safetensors").read_bytes()
    start = 8 + struct.unpack_from("<Q", data)[0]
    begin, end = json.loads(data[8:start])["lm_head.weight"]["data_offsets"]
    head = struct.unpack(f"<{SIZE * SIZE}f", data[start + begin : start + end])
    return [list(head[before::SIZE]) for before in range(SIZE)]


def safetensors(tensors: dict[str, tuple[list[int], list[float]]]) -> bytes:
    """A file of that format: length of the header, header, numbers."""
    header, body = {}, b""
    for name, (shape, values) in tensors.items():
        data = struct.pack(f"<{len(values)}f", *values)
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
        body += data
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + body


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": SIZE,
    "hidden_size": SIZE,
    "intermediate_size": SIZE,
    "num_hidden_layers": 0,
    "num_attention_heads": 1,
    "rms_norm_eps": 1e-9,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {
        "type": "Split",
        "pattern": {"Regex": "."},
        "behavior": "Isolated",
        "invert": False,
    },
    "decoder": {"type": "Fuse"},
    "model": {
        "type": "WordLevel",
        "vocab": {symbol: number for number, symbol in enumerate(SYMBOLS)},
        "unk_token": " ",
    },
}
