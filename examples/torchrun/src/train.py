"""Fit a line with DistributedDataParallel; rank 0 saves checkpoints, and a new run can load them."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 40
SAVE_EVERY = 20


def main() -> None:
    """Train, one process of torchrun."""
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(dist.get_rank())
    for step in range(1, STEPS + 1):
        x = torch.randn(32, 8, generator=data).to(device)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % SAVE_EVERY == 0 and dist.get_rank() == 0:
            print(f"step {step} of {STEPS}, {dist.get_world_size()} processes, loss {loss:.4f}")
            save(model.module, step)
    dist.barrier()
    dist.destroy_process_group()


def save(model: nn.Module, step: int) -> None:
    """Write a checkpoint under another name first, so that none is uploaded in part."""
    folder = Path(os.environ["BT_CHECKPOINT_DIR"])
    partial = folder / f".partial-{step}"
    partial.mkdir(parents=True)
    torch.save(model.state_dict(), partial / "model.pt")
    partial.rename(folder / f"checkpoint-{step}")


if __name__ == "__main__":
    main()
