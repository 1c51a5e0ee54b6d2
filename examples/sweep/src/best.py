"""Name the setting with the smallest loss."""

import json
import os
import pathlib

cache = pathlib.Path(os.environ["BT_PROJECT_CACHE_DIR"])
results = [json.loads(path.read_text()) for path in cache.glob("loss-*.json")]
best = min(results, key=lambda one: one["loss"])
print(
    f"{len(results)} runs; the best is lr {best['lr']}, seed {best['seed']}: loss {best['loss']:.4f}"
)
