"""Files of a new project: a copy of an example, or a minimal manifest for this machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import trainctl
from trainctl.errors import StorageError
from trainctl.manifest.files import manifest_files

EXAMPLES: Mapping[str, str] = {
    "quickstart": "One machine: a tiny model, its weights, a cache and checkpoints",
    "two-hosts": "One process on each of two SSH hosts",
    "lora": "LoRA fine-tuning with transformers and PEFT",
    "torchrun": "DistributedDataParallel on two SSH hosts, started by torchrun",
    "sweep": "A matrix of settings, two runs at a time, then the best of them",
    "slurm": "A run on two nodes of a Slurm cluster",
}
"""Examples by name."""

_MANIFEST = "trainctl.yaml"
_MOST_HOSTS = 8
_FOR_THE_CHECKOUT = ("run", "__pycache__")


class InitResult(NamedTuple):
    """Relative paths of the files that were written, and of those that existed before."""

    written: list[str]
    existing: list[str]


def write_example(name: str, directory: Path) -> InitResult:
    """Copy an example; files that exist are kept."""
    package = Path(trainctl.__file__).parent
    installed = package / "examples"  # a checkout has them next to the package
    source = (installed if installed.is_dir() else package.parent / "examples") / name
    paths = sorted(path for path in source.rglob("*") if path.is_file())
    named = {path.relative_to(source): path for path in paths}
    return _write(
        directory,
        {
            str(path): file.read_bytes()
            for path, file in named.items()
            if not set(path.parts) & set(_FOR_THE_CHECKOUT)
        },
    )


def write_minimal(directory: Path, ssh_config: Path) -> InitResult:
    """Write a manifest and a training script; files that exist are kept."""
    gpus = _gpus()
    hosts = _hosts(ssh_config)[:_MOST_HOSTS]
    kind = re.search(r"\b[A-Z]+\d+\w*|\d{4}", gpus[0]) if gpus else None
    accelerator = f"{kind[0] if kind else 'H100'}:{len(gpus) or 1}"
    text = _TEMPLATE.format(
        name=json.dumps(directory.resolve().name or "project", ensure_ascii=False),
        machine=f"{len(gpus)} × {gpus[0]}" if gpus else "no NVIDIA GPU found",
        hosts=", ".join(hosts or ["gpu-01", "gpu-02"]),
        origin="Hosts of ~/.ssh/config, not contacted" if hosts else "SSH hosts",
        accelerator=accelerator,
    )
    return _write(directory, {"src/train.py": _SCRIPT.encode(), _MANIFEST: text.encode()})


def _write(directory: Path, contents: Mapping[str, bytes]) -> InitResult:
    """Write files, the manifest last; nothing if the directory has another manifest."""
    result = InitResult([], [])
    try:
        directory.mkdir(parents=True, exist_ok=True)
        others = [name for name in manifest_files(directory) if name not in contents]
        if others:
            return InitResult([], others)
        for name in sorted(contents, key=lambda name: (name == _MANIFEST, name)):
            path = directory / name
            if path.exists() or path.is_symlink():
                result.existing.append(name)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(contents[name])
            result.written.append(name)
    except OSError as problem:
        raise StorageError(f"cannot write {problem.filename}: {problem.strerror}") from problem
    return result


def _gpus() -> list[str]:
    """Names of this machine's GPUs; empty without a working nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    if shutil.which(query[0]) is None:
        return []
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _hosts(config: Path) -> list[str]:
    """Names of the hosts of an ssh_config(5) file without patterns, and without git servers."""
    hosts: dict[str, str] = {}
    names: list[str] = []
    for key, value in _ssh_settings(config, 0):
        if key == "host":
            names = [name for name in value.split() if re.fullmatch(r"[\w.-]+", name)]
            hosts |= {name: hosts.get(name, "") for name in names}
        elif key == "match":
            names = []
        elif key == "user":
            hosts |= dict.fromkeys(names, value)
    return [name for name, user in hosts.items() if user != "git"]


def _ssh_settings(config: Path, depth: int) -> Iterator[tuple[str, str]]:
    """Yield keys and values, those of included files too."""
    try:
        lines = config.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        key, _, value = re.sub(r"\s*=\s*|\s+", " ", line.strip(), count=1).partition(" ")
        if key.lower() == "include" and depth < 1:
            for pattern in value.split():
                base = config.parent / Path(pattern).expanduser()
                for path in sorted(base.parent.glob(base.name)):
                    yield from _ssh_settings(path, depth + 1)
        yield key.lower(), value


_TEMPLATE = """\
# Preview with "trainctl plan", run with "trainctl apply --wait", then read "trainctl logs job.train".
# "trainctl explain jobs.*" lists the fields of a job.

project: {{name: {name}}}

# Without a cluster, jobs run on this machine ({machine}).
# {origin}: remove the "#" of the next line to run there instead.
# clusters: {{lab: {{provider: ssh, hosts: [{hosts}]}}}}

# weights:
#   base:
#     source: hf://Qwen/Qwen3-0.6B@main     # or s3://bucket/prefix, https://…, file:./directory
#     mount_location: models/base           # relative: below the job's working directory

jobs:
  train:
    code: ./src                             # this directory is copied to the node
    # weights: [base]
    # compute: {{accelerator: "{accelerator}", node_count: 1}}      # GPUs and nodes of a run
    # image: {{base_image: "pytorch/pytorch:2.7.0-cuda12.8-cudnn9-runtime"}}
    runtime:
      start_commands: [python3 train.py]
      # environment_variables: {{HF_HUB_OFFLINE: "1"}}
      checkpointing_config: {{enabled: true}}   # files in $BT_CHECKPOINT_DIR are kept
"""

_SCRIPT = '''\
"""Replace this by your training script."""

import os
import socket
from pathlib import Path

rank, size = os.environ["BT_NODE_RANK"], os.environ["BT_GROUP_SIZE"]
print(f"rank {rank} of {size} on {socket.gethostname()}")
checkpoint = Path(os.environ["BT_CHECKPOINT_DIR"], "checkpoint-1")
checkpoint.mkdir(parents=True)
(checkpoint / "result.txt").write_text("done\\n")
'''
