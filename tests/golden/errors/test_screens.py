"""What people see of a wrong manifest, word for word. Refresh with ``pytest --snapshot-update`` and read the difference."""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from tests.support.projects.manifests import problems
from trainctl.errors import ManifestError
from trainctl.views.problems import problem_lines

SCREENS = {
    "several": """\
clusters: {lab: {provider: local, nodess: 2}}
weights:
  tiny: {source: "hf:Qwen/Qwen3-0.6B", mount_location: /usr}
jobs:
  sft:
    cluster: lap
    compute: {node_count: 0}
    weights: [tiny]
    runtime: {start_comands: [python train.py]}
""",
    "one": """\
jobs: {sft: {runtime: {start_commands: ["python train.py --lr ${{ var.lr }}"]}}}
""",
    "syntax": """\
jobs:
  sft: {runtime: {start_commands: [python train.py]}
  eval: {}
""",
    "wide": """\
jobs:
  sft: {labels: {名前: 学習, 説明: "これは長い説明です。これは長い説明です。これは長い説明です。これは長い説明です。"}, priorty: 1, runtime: {start_commands: [python train.py]}}
""",
    "hostile": """\
jobs:
  sft: {"\\e[2Jlabels": "\u202eabc", runtime: {start_commands: [python train.py]}}
  "x\\ny": {"\u202epriority": 1, runtime: {start_commands: [python train.py]}}
""",
    "secret": """\
secrets: {wandb: {from: env, nam: WANDB}}
weights:
  tiny: {source: "https://me:planted-password@example.com/x.bin"}
jobs:
  sft:
    compute: {acelerator: H100, memry: hf_plantedPLANTED0123456789abcdef}
    runtime:
      start_commands: [python train.py]
      environment_variables:
        BT_KEY: planted-in-a-variable
        OTHER: [planted-in-another]
""",
}


class Screen(SingleFileSnapshotExtension):
    """One text file for each screen."""

    file_extension = "txt"
    _write_mode = WriteMode.TEXT


def shown(directory: Path, text: str, name: str) -> str:
    """What ``validate`` says of a manifest, without colour."""
    error = ManifestError(tuple(problems(directory, text, name)))
    return "\n".join([*problem_lines(error), ""])


@pytest.mark.parametrize("name", SCREENS)
def test_screen(name: str, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """This manifest's errors look as they were judged to look."""
    assert shown(tmp_path, SCREENS[name], "trainctl.yaml") == snapshot.use_extension(Screen)


def test_toml_shows_its_keys(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """A wrong value in TOML is shown with its path of keys."""
    text = '[jobs.sft]\npriorty = 8\n[jobs.sft.runtime]\nstart_commands = "python train.py"\n'
    assert shown(tmp_path, text, "trainctl.toml") == snapshot.use_extension(Screen)


def test_nothing_planted_is_on_any_screen(tmp_path: Path) -> None:
    """What may be a secret is on no line that is shown."""
    assert "planted" not in shown(tmp_path, SCREENS["secret"], "trainctl.yaml").lower()
