"""PyTorch for the CPU, installed once into a cache, and an image with the Python that can load it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.install_cache import install_once

VERSION = "2.13.0"
TRANSFORMERS = "5.24.0"
PYTHON = f"python3.{sys.version_info.minor}"

GLOO_TRAIN = """\
import os, pathlib, time
import torch
import torch.distributed as dist
from torch import nn

STEPS, EVERY = 60, 10
torch.manual_seed(7)
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=int(os.environ["BT_NODE_RANK"]), world_size=int(os.environ["BT_GROUP_SIZE"]))
rank = dist.get_rank()
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
folder = pathlib.Path(os.environ["BT_CHECKPOINT_DIR"])
loaded = pathlib.Path(os.environ["BT_LOAD_CHECKPOINT_DIR"])
files = [*folder.glob("step-*/state.pt"), *loaded.glob(f"*/rank-{rank}/step-*/state.pt")]
done = {int(path.parent.name.split("-")[1]): path for path in files}
newest = torch.tensor([max(done, default=0)])
dist.all_reduce(newest, op=dist.ReduceOp.MIN)
start = int(newest)
if start:
    state = torch.load(done[start])
    model.load_state_dict(state["model"])
    print("resumed at", start, flush=True)
for step in range(start + 1, STEPS + 1):
    if step == 35 and not start and os.environ["WAITS"] == "yes":
        if rank == 1:
            print("waiting to be killed", flush=True)
            time.sleep(600)
    random = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(8, 16, generator=random)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= 2
    optimizer.step()
    if step % EVERY == 0:
        partial = folder / f".partial-{step}"
        partial.mkdir(parents=True, exist_ok=True)
        torch.save({"model": model.state_dict()}, partial / "state.pt")
        partial.rename(folder / f"step-{step}")
total = loss.detach().clone()
dist.all_reduce(total)
print("final loss", total.item().hex(), flush=True)
dist.barrier()
os._exit(0)  # the threads of gloo abort now and then while an interpreter ends
"""
"""Two ranks over gloo, with a checkpoint every ten steps. With WAITS=yes rank 1 stands still at step 35, unless it goes on from a checkpoint."""


@functools.cache
def pytorch(*packages: str) -> Path:
    """A virtual environment with PyTorch and packages; the test is skipped where they can't be installed, and says why."""
    name = "-".join(["torch", VERSION, PYTHON, *packages])
    return install_once(name, functools.partial(_install, packages))


def _install(packages: Sequence[str], place: Path) -> None:
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    if subprocess.run([uv, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("needs uv to install PyTorch")
    pip_find_links = os.environ.get("PIP_FIND_LINKS")
    variables = {**os.environ, **({"UV_FIND_LINKS": pip_find_links} if pip_find_links else {})}
    build = [] if pip_find_links else ["--torch-backend", "cpu"]
    for words in (
        ["venv", "-q", "--python", sys.executable, str(place)],
        [
            "pip",
            "install",
            "-q",
            *build,
            "--python",
            str(place),
            f"torch=={VERSION}",
            "numpy",
            *packages,
        ],
    ):
        done = subprocess.run(
            [uv, *words], env=variables, capture_output=True, text=True, timeout=900, check=False
        )
        if done.returncode:
            pytest.skip(f"PyTorch {VERSION} can't be installed: {done.stderr.strip()[-300:]}")
