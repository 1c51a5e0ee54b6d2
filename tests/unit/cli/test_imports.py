"""``trainctl import truss`` as a program; with the SDK itself in the long tier."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support.install_cache import install_once
from tests.support.projects.program import ROOT, trainctl

VERSION = "0.18.36"
"""The version of the SDK whose fields ``operations.manifests.truss`` knows."""
GOLDEN = ROOT / "tests/golden/truss/dumps.json"
CONFIGS = ROOT / "tests/support/projects/truss_configs.py"
FROM_DUMP = ("import", "truss", "--from-json", "dump.json")


def write_dump(directory: Path, name: str = "cookbook") -> Path:
    path = directory / "dump.json"
    path.write_text(json.dumps(json.loads(GOLDEN.read_text())[name]))
    return path


def test_a_dump_becomes_a_valid_manifest(tmp_path: Path) -> None:
    """Next to the config; a second time nothing is overwritten, and a name that plan doesn't read is reported."""
    write_dump(tmp_path)
    done = trainctl(*FROM_DUMP, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Addresses: project.LoRA-GLM-4.6-ML-Cookbook" in done.stdout
    assert "Next: set HF_TOKEN, WANDB_API_KEY, then run trainctl plan." in done.stdout
    assert trainctl("validate", cwd=tmp_path).stdout == "The manifest is valid.\n"
    before = (tmp_path / "trainctl.yaml").read_bytes()
    again = trainctl(*FROM_DUMP, cwd=tmp_path)
    assert (again.returncode, "[target-exists]" in again.stderr) == (64, True)
    assert (tmp_path / "trainctl.yaml").read_bytes() == before
    other = trainctl(*FROM_DUMP, "--out", "a.toml", cwd=tmp_path)
    assert (other.returncode, "*.trainctl.toml" in other.stderr) == (0, True)


def test_what_a_plan_would_refuse_is_not_carried_over(tmp_path: Path) -> None:
    """Directories outside of the repository, and values that are invalid here; the config's own are kept."""
    directory = tmp_path / "train"
    for path in ("seed", "train/lib"):
        (tmp_path / path).mkdir(parents=True)
    dump = json.loads(write_dump(directory, "minimal").read_text())
    places = {"external_dirs": ["../seed", "lib"], "exclude_dirs": ["lib", "../x"]}
    dump["job"] |= {
        "workspace": {"workspace_root": ".", **places},
        "weights": [{"source": "bdn:acme/llama:v1", "mount_location": "/m"}],
    }
    (directory / "dump.json").write_text(json.dumps(dump))
    done = trainctl(*FROM_DUMP, cwd=directory)
    kept, _, refused = done.stdout.partition("Not carried over")
    assert (done.returncode, "workspace_root, external_dirs, exclude_dirs\n" in kept) == (1, True)
    for text in (
        "workspace.external_dirs: ../seed: ",
        "exclude_dirs: ../x: ",
        "a volume of Baseten",
    ):
        assert text in refused
    assert "external_dirs: [lib]" in (directory / "trainctl.yaml").read_text()


def test_a_manifest_on_standard_output(tmp_path: Path) -> None:
    """From a dump on standard input; the report is on standard error."""
    dump = write_dump(tmp_path)
    done = trainctl(
        *("-C", str(tmp_path), "import", "truss", "--from-json", "-", "--out", "-"),
        *("--format", "toml", "--hosts", "gpu-01,gpu-02"),
        stdin=dump.read_text(),
    )
    assert done.returncode == 0
    assert done.stdout.startswith("[project]\n# Address: project.LoRA")
    assert "Carried over:" in done.stderr
    assert list(tmp_path.iterdir()) == [dump]


def test_the_cluster_of_another_file_is_accepted(tmp_path: Path) -> None:
    """That file isn't read: it may be extended by git, or have the name that standard output stands for."""
    dump = write_dump(tmp_path, "minimal")
    (tmp_path / "trainctl.yaml").write_text(
        "extends: git::https://x.invalid/a\nclusters: {lab: 5}\n"
    )
    done = trainctl(*FROM_DUMP[:3], dump.name, "--out", "-", "--cluster", "lab", cwd=tmp_path)
    assert (done.returncode, "cluster: lab" in done.stdout) == (0, True), done.stderr


def test_modules_next_to_the_config_are_not_imported(tmp_path: Path) -> None:
    """They can't stand in for those of Python or the SDK."""
    for name in ("truss_train", "json", "pathlib", "contextlib"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')\n")
    (tmp_path / "config.py").write_text("")
    done = trainctl("import", "truss", "config.py", "--python", sys.executable, cwd=tmp_path)
    assert (done.returncode, "[no-truss]" in done.stderr) == (1, True)
    assert not (tmp_path / "ran").exists()


def _install(place: Path) -> None:
    venv.create(place, with_pip=True, symlinks=True)
    command = [str(place / "bin/python"), "-m", "pip", "install", "-q", f"truss=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        shutil.rmtree(place)
        pytest.skip(f"the package truss can't be installed here: {done.stderr[-200:]}")


@pytest.mark.long
def test_the_sdk_itself(tmp_path: Path) -> None:
    """It makes the dumps that all other tests start from, and reads a config for the command."""
    python = install_once(f"truss-{VERSION}", _install) / "bin/python"
    dumped = subprocess.run([python, CONFIGS], capture_output=True, text=True, check=True)
    assert json.loads(dumped.stdout) == json.loads(GOLDEN.read_text())
    (tmp_path / "config.py").write_text(
        "import runpy\nprint('noise')\n"
        f"project = runpy.run_path({str(CONFIGS)!r})['configs']()['cookbook']\n"
    )
    done = trainctl("import", "truss", "config.py", "--python", str(python), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "  project.name                   LoRA GLM-4.6 - ML Cookbook\n" in done.stdout
    assert trainctl("validate", cwd=tmp_path).stdout == "The manifest is valid.\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.py", "trainctl.yaml"]
