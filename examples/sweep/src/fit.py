"""Fit the model by stochastic gradient descent; report the loss of both texts and save, every 50 steps."""

import json
import os
import random
import sys
from pathlib import Path

from bigram import SIZE, chances, loss_of, pairs_of, read_texts, save

STEPS, SAVE_EVERY, BATCH = 300, 50, 32
lr, seed = float(sys.argv[1]), int(sys.argv[2])

choose = random.Random(seed)  # noqa: S311 - the same seed is to give the same model
train = pairs_of(read_texts()["train"])
model = [[choose.gauss(0, 1) for _ in range(SIZE)] for _ in range(SIZE)]
with Path(os.environ["TRAINCTL_PROGRESS"]).open("a") as progress:
    for step in range(1, STEPS + 1):
        for before, after in choose.choices(train, k=BATCH):
            for index, chance in enumerate(chances(model[before])):
                model[before][index] -= lr * (chance - (index == after))
        if step % 10 == 0:
            report = {"step": step, "total": STEPS, "loss": loss_of(model, train)}
            print(json.dumps(report), file=progress, flush=True)
        if step % SAVE_EVERY == 0:
            save(model, Path(os.environ["BT_CHECKPOINT_DIR"]) / f"checkpoint-{step}")
            print(f"saved checkpoint-{step}", flush=True)
