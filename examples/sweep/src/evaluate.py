"""Test one checkpoint with sentences that it hasn't seen."""

import json
import os
from pathlib import Path

from bigram import load, loss_of, pairs_of, read_texts

file = next(Path(os.environ["BT_LOAD_CHECKPOINT_DIR"]).rglob("model.safetensors"))
loss = loss_of(load(file.parent), pairs_of(read_texts()["test"]))
with Path(os.environ["TRAINCTL_PROGRESS"]).open("a") as progress:
    print(json.dumps({"test_loss": loss}), file=progress)
print(f"{file.parent.name}: loss {loss:.3f}")
