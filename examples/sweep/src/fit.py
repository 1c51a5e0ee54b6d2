"""Fit a line by stochastic gradient descent; the loss goes into the training cache, the line into a checkpoint."""

import argparse
import json
import os
import pathlib
import random

STEPS = 2000

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--seed", type=int, required=True)
given = parser.parse_args()
choose = random.Random(given.seed)  # noqa: S311 - the same seed is to give the same line
cache = pathlib.Path(os.environ["BT_PROJECT_CACHE_DIR"])
points = json.loads((cache / "points.json").read_text())
slope, offset = choose.random(), choose.random()
for _ in range(STEPS):
    x, y = choose.choice(points)
    error = slope * x + offset - y
    slope -= given.lr * error * x
    offset -= given.lr * error
loss = sum((slope * x + offset - y) ** 2 for x, y in points) / len(points)
checkpoint = pathlib.Path(os.environ["BT_CHECKPOINT_DIR"]) / f"checkpoint-{STEPS}"
checkpoint.mkdir(parents=True)
(checkpoint / "line.json").write_text(json.dumps({"slope": slope, "offset": offset}))
result = {"lr": given.lr, "seed": given.seed, "loss": loss}
(cache / f"loss-{given.lr}-{given.seed}.json").write_text(json.dumps(result))
print(f"loss {loss:.4f}")
