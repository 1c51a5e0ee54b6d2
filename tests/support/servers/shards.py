"""Revisions of a model in shards that are announced as large, of which only the headers exist."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tests.support.servers.hub import Hub, HubFile

_TENSORS = 10
_FIRST_BYTES = 16 * 2**10


def safetensors(tensors: Mapping[str, tuple[str, Sequence[int]]]) -> bytes:
    """A file without its data."""
    rows = {
        name: {"dtype": kind, "shape": shape, "data_offsets": [0, 0]}
        for name, (kind, shape) in tensors.items()
    }
    header = json.dumps({"__metadata__": {"format": "pt"}, **rows}).encode()
    return len(header).to_bytes(8, "little") + header


def publish_shards(hub: Hub, repo: str, count: int, size: int, kind: str) -> str:
    """Commit so many shards of a size, with ten tensors each, and their index; the commit."""
    files: dict[str, HubFile] = {}
    weight_map = {}
    for number in range(count):
        path = f"model-{number:05}.safetensors"
        names = [f"model.layers.{number}.{n}.weight" for n in range(_TENSORS)]
        content = safetensors({name: (kind, [4096, 1024]) for name in names})
        files[path] = HubFile(path, content.ljust(_FIRST_BYTES, b"\0"), True, size)
        weight_map.update(dict.fromkeys(names, path))
    index = json.dumps({"metadata": {"type": kind}, "weight_map": weight_map}).encode()
    files["model.safetensors.index.json"] = HubFile("model.safetensors.index.json", index, False)
    return hub.publish(repo, files)
