"""Make sentences to learn from and others to be tested with, in the training cache that the jobs share."""

import json
import os
import random
from pathlib import Path

WORDS = (
    ["the", "a", "every", "no"],
    ["red", "small", "quick", "old"],
    ["fox", "model", "node", "cat"],
    ["sees", "trains", "likes", "moves"],
)

choose = random.Random(0)  # noqa: S311 - the same sentences every time
sentences = [" ".join(map(choose.choice, WORDS)) + "." for _ in range(120)]
texts = {"train": " ".join(sentences[:6]), "test": " ".join(sentences[6:])}
(Path(os.environ["BT_PROJECT_CACHE_DIR"]) / "texts.json").write_text(json.dumps(texts))
print(f"{len(sentences)} sentences")
