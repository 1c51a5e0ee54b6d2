"""The wheel, installed alone, is the whole product: it runs the quickstart."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.projects.program import ROOT
from trainctl.operations.manifests.init import EXAMPLES

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by hatchling from a copy of the checkout, with nothing fetched for it."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    for name in ("trainctl", "providers", "state", "schemas", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")],
        cwd=copy, check=True, capture_output=True,
    )  # fmt: skip
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` directory of an environment that holds the wheel and its dependencies, and nothing of the checkout."""
    folder = tmp_path_factory.mktemp("alone") / "venv"
    uv = _uv()
    if uv:
        subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(folder)], check=True)
        install = [
            uv,
            "pip",
            "install",
            "-q",
            "--python",
            str(folder / "bin" / "python"),
            str(wheel),
        ]
    else:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", str(wheel)]
    subprocess.run(install, check=True, cwd=folder)
    return folder / "bin"


def _uv() -> str | None:
    for value in (str(Path(sys.executable).with_name("uv")), shutil.which("uv")):
        if value and Path(value).exists():
            works = subprocess.run([value, "--version"], capture_output=True, check=False)
            if works.returncode == 0:
                return value
    return None


def packaged() -> set[str]:
    """The files of all packages but documents, as the wheel names them."""
    roots = (ROOT, ROOT / "providers", ROOT / "state", ROOT / "schemas")
    folders = [
        (root, folder) for root in roots for folder in root.glob("trainctl*") if folder.is_dir()
    ]
    return {
        str(path.relative_to(root))
        for root, folder in folders
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".md" and "__pycache__" not in path.parts
    }


def test_nothing_generic_lands_in_site_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {
        "trainctl", "trainctl_schemas", "trainctl_state", "trainctl_aws", "trainctl_local", "trainctl_slurm", "trainctl_ssh", "trainctl_terraform",
    }  # fmt: skip
    assert [name for name in names if name.endswith(".md")] == ["trainctl/errors.md"]
    examples = {
        f"trainctl/examples/{path.relative_to(ROOT / 'examples')}"
        for name in ("minimal", *EXAMPLES)
        for path in (ROOT / "examples" / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == (
        packaged() | examples | {"trainctl/errors.md"}
    )


def test_plugins_are_found_and_load(installed: Path) -> None:
    program = (
        "from importlib.metadata import entry_points\n"
        "for group in ('trainctl.providers', 'trainctl.state'):\n"
        "    for point in entry_points(group=group):\n"
        "        point.load(); print(point.name)\n"
        "import trainctl; print(trainctl.__file__)\n"
    )
    done = subprocess.run(
        [str(installed / "python"), "-I", "-c", program],
        cwd=installed, capture_output=True, text=True, check=False,
    )  # fmt: skip
    *names, place = done.stdout.splitlines() or [""]
    assert {"local", "file", "memory"} <= set(names), done.stderr
    assert Path(place).is_relative_to(installed.parent)


def test_the_program_runs(installed: Path) -> None:
    done = subprocess.run(
        [str(installed / "trainctl"), "version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("trainctl ")


def test_the_installed_program_has_the_examples(installed: Path, tmp_path: Path) -> None:
    subprocess.run(
        [str(installed / "trainctl"), "init", str(tmp_path / "new"), "--example", "sweep"],
        capture_output=True, check=True,
    )  # fmt: skip
    manifest = (tmp_path / "new" / "trainctl.yaml").read_bytes()
    assert manifest == (ROOT / "examples" / "sweep" / "trainctl.yaml").read_bytes()


def test_the_quickstart_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    done = subprocess.run(
        [str(ROOT / "examples" / "quickstart" / "run")],
        env={**environment, "TRAINCTL": str(installed / "trainctl"), "TMPDIR": str(temporary)},
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(temporary.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tmp"]
