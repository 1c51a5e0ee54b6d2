# mypy: ignore-errors
"""Configs of the hosted service, made from their dumps by its SDK; needs the package truss.

``python truss_configs.py`` prints the SDK's dumps, which are those in ``tests/golden/truss/dumps.json``.
"""

from __future__ import annotations

import json
from pathlib import Path

from truss_train import TrainingProject

DUMPS = Path(__file__).parents[2] / "golden/truss/dumps.json"


def configs() -> dict[str, TrainingProject]:
    """Configs that cover every field of the SDK, by name."""
    return {
        name: TrainingProject.model_validate_json(
            json.dumps({**dump["project"], "job": dump["job"]})
        )
        for name, dump in json.loads(DUMPS.read_text()).items()
    }


if __name__ == "__main__":
    dumps = {
        name: {
            "project": project.model_dump(mode="json"),
            "job": project.job.model_dump(mode="json"),
        }
        for name, project in configs().items()
    }
    print(json.dumps(dumps, indent=1))
