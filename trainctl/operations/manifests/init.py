"""Files of a new project: a copy of an example, or a minimal manifest for this machine."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import trainctl
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.manifest.files import manifest_files

EXAMPLES: Mapping[str, str] = {
    "quickstart": "One machine: a tiny model, its weights, a cache and checkpoints",
    "two-hosts": "One process on each of two SSH hosts",
    "lora": "LoRA fine-tuning with transformers and PEFT",
    "torchrun": "DistributedDataParallel on two SSH hosts, started by torchrun",
    "sweep": "A matrix of settings, each checkpoint evaluated, then the best of them",
    "slurm": "A run on two nodes of a Slurm cluster",
    "terraform": "Machines of any cloud, by a Terraform or OpenTofu module",
}
_MANIFEST = "trainctl.yaml"
_MOST_HOSTS = 8
_NOT_COPIED = {"run", "__pycache__"}


class InitResult(NamedTuple):
    """Relative paths of the files that were written, and of those that existed before."""

    written: list[str]
    existing: list[str]


def write_example(name: str, directory: Path) -> InitResult:
    """Copy an example; files that exist are kept."""
    return _write(directory, _files(name))


def write_minimal(directory: Path, ssh_config: Path) -> InitResult:
    """Write the minimal example with the GPUs of this machine and the hosts of ssh_config(5)."""
    gpus = _gpus()
    config = ssh_config.read_text(errors="replace") if ssh_config.is_file() else ""
    words = " ".join(re.findall(r"(?im)^[ \t]*host[ \t=]+(.+)$", config)).split()
    # without patterns and git servers
    names = (word for word in words if re.fullmatch(r"[\w.-]+", word) and "git" not in word)
    hosts = list(dict.fromkeys(names))[:_MOST_HOSTS]
    values = {'"minimal"': json.dumps(directory.resolve().name or "project", ensure_ascii=False)}
    if gpus:
        kind = re.search(r"\b[A-Z]+\d+\w*|\d{4}", gpus[0])
        values["no NVIDIA GPU found"] = f"{len(gpus)} × {gpus[0]}"
        values["H100:1"] = f"{kind[0] if kind else 'H100'}:{len(gpus)}"
    if hosts:
        values["# SSH hosts:"] = "# Hosts of ~/.ssh/config, not contacted:"
        values["gpu-01, gpu-02"] = ", ".join(hosts)
    files = _files("minimal")
    text = files[_MANIFEST].decode()
    for old, new in values.items():
        text = text.replace(old, new, 1)
    return _write(directory, {**files, _MANIFEST: text.encode()})


def _files(name: str) -> dict[str, bytes]:
    """Return the files of an example, the manifest last."""
    package = Path(trainctl.__file__).parent
    installed = package / "examples"  # a checkout has them next to the package
    source = (installed if installed.is_dir() else package.parent / "examples") / name
    found = (path for path in source.rglob("*") if path.is_file())
    paths = sorted(found, key=lambda path: (path.name == _MANIFEST, path))
    files = {str(path.relative_to(source)): path.read_bytes() for path in paths}
    return {name: data for name, data in files.items() if not _NOT_COPIED & {*Path(name).parts}}


def _write(directory: Path, contents: Mapping[str, bytes]) -> InitResult:
    """Write the files that don't exist; nothing if the directory has another manifest."""
    directory.mkdir(parents=True, exist_ok=True)
    others = [name for name in manifest_files(directory) if name not in contents]
    result = InitResult([], others)
    for name in [] if others else contents:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("xb") as file:
                file.write(contents[name])
            result.written.append(name)
        except FileExistsError:
            result.existing.append(name)
    return result


def _gpus() -> list[str]:
    """Return the names of this machine's GPUs; none without a working nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
