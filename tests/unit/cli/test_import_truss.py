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
"""Of the SDK, the one whose fields ``operations.truss`` knows."""
GOLDEN = ROOT / "tests/golden/truss/dumps.json"
CONFIGS = ROOT / "tests/support/projects/truss_configs.py"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A dump of an ordinary config."""
    (tmp_path / "dump.json").write_text(json.dumps(json.loads(GOLDEN.read_text())["cookbook"]))
    return tmp_path / "dump.json"


def test_a_dump_becomes_a_valid_manifest(dump: Path) -> None:
    """Next to the config; a second time nothing is overwritten."""
    done = trainctl("import", "truss", "--from-json", "dump.json", cwd=dump.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Addresses: project.LoRA-GLM-4.6-ML-Cookbook" in done.stdout
    assert "Next: set HF_TOKEN, WANDB_API_KEY, then run trainctl plan." in done.stdout
    assert trainctl("validate", cwd=dump.parent).stdout == "The manifest is valid.\n"
    before = (dump.parent / "trainctl.yaml").read_bytes()
    again = trainctl("import", "truss", "--from-json", "dump.json", cwd=dump.parent)
    assert (again.returncode, "[target-exists]" in again.stderr) == (64, True)
    assert (dump.parent / "trainctl.yaml").read_bytes() == before


def test_the_manifest_on_standard_output(dump: Path) -> None:
    """From standard input, for ``out`` and ``from-json`` both; the report is on standard error."""
    done = trainctl(
        *("-C", str(dump.parent), "import", "truss", "--from-json", "-", "--out", "-"),
        *("--format", "toml", "--hosts", "gpu-01,gpu-02"),
        stdin=dump.read_text(),
    )
    assert done.returncode == 0
    assert done.stdout.startswith("[project]\n# Address: project.LoRA")
    assert "Carried over:" in done.stderr
    assert list(dump.parent.iterdir()) == [dump]


def test_a_checkpoint_of_the_service_fails(dump: Path) -> None:
    """The manifest is written, and says what is missing."""
    dump.write_text(json.dumps(json.loads(GOLDEN.read_text())["loops"]))
    done = trainctl("import", "truss", "--from-json", "dump.json", cwd=dump.parent)
    assert done.returncode == 1
    assert "'step-10' of the Loops run 'r1' is stored by the service." in done.stdout
    assert "# Not carried over" in (dump.parent / "trainctl.yaml").read_text()


def test_other_names_are_not_read(dump: Path) -> None:
    """By plan; the command says so."""
    words = ("import", "truss", "--from-json", "dump.json", "--out")
    done = trainctl(*words, "a.toml", cwd=dump.parent)
    assert (done.returncode, "*.trainctl.toml" in done.stderr) == (0, True)
    assert trainctl(*words, "a.trainctl.toml", cwd=dump.parent).stderr == ""
    assert trainctl("validate", cwd=dump.parent).stdout == "The manifest is valid.\n"


@pytest.mark.parametrize(
    "text",
    [
        *("{}", "x", "[1]", '{"project": {"name": "a"}, "job": {"image": "b"}}'),
        '{"project": {"name": "a"}, "job": {"image": {"base_image": "b"}, "compute": {"node_count": "2"}}}',
    ],
)
def test_other_files_are_refused(dump: Path, text: str) -> None:
    dump.write_text(text)
    done = trainctl("import", "truss", "--from-json", "dump.json", cwd=dump.parent)
    assert (done.returncode, "[invalid-config]" in done.stderr) == (1, True)


def test_nothing_of_the_directory_runs(tmp_path: Path) -> None:
    """Modules next to the config can't stand in for those of Python or the SDK."""
    for name in ("truss_train", "json", "pathlib", "contextlib"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')\n")
    (tmp_path / "config.py").write_text("")
    done = trainctl("import", "truss", "config.py", "--python", sys.executable, cwd=tmp_path)
    assert (done.returncode, "[no-truss]" in done.stderr) == (1, True)
    assert not (tmp_path / "ran").exists()


def test_interpreters_and_configs_that_are_missing(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text("")
    for words, summary in (
        (("config.py", "--python", "/missing/python"), "cannot run /missing/python"),
        (("missing.py",), "missing.py not found"),
        ((), "missing CONFIG.py"),
    ):
        done = trainctl("import", "truss", *words, cwd=tmp_path)
        assert summary in done.stderr


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
    made = subprocess.run([python, CONFIGS], capture_output=True, text=True, check=True)
    assert json.loads(made.stdout) == json.loads(GOLDEN.read_text())
    (tmp_path / "config.py").write_text(
        "import importlib.util\nprint('noise')\n"
        f"spec = importlib.util.spec_from_file_location('configs', {str(CONFIGS)!r})\n"
        "configs = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(configs)\n"
        "project = configs.cookbook()\n"
    )
    done = trainctl("import", "truss", "config.py", "--python", str(python), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "  project.name                   LoRA GLM-4.6 - ML Cookbook\n" in done.stdout
    assert trainctl("validate", cwd=tmp_path).stdout == "The manifest is valid.\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.py", "trainctl.yaml"]
    (tmp_path / "two.py").write_text("from config import project, project as other\n")
    two = trainctl("import", "truss", "two.py", "--python", str(python), "--out", "-", cwd=tmp_path)
    assert (two.returncode, "No module named 'config'" in two.stderr) == (1, True)
