"""Environments of the host: what they lack, what is built once, what is active in a job."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.node_program.nodes import NodeHarness, NodeProgramError
from trainctl.node.system.host import logout_rules

pytestmark = pytest.mark.integration


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A directory with one package, ``tiny``, so that nothing is fetched from anywhere."""
    directory = tmp_path / "wheels"
    directory.mkdir()
    with zipfile.ZipFile(directory / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "print('tiny is here')")
        wheel.writestr(
            "tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
        )
        wheel.writestr(
            "tiny-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")  # fmt: skip
    return directory


def build(node: NodeHarness, requirements: str = "requirements.txt") -> dict[str, object]:
    """Build the environment of the code that was shipped."""
    return node.call("build_environment", {"code": "sha256:code", "requirements": requirements})


def test_requirements_are_installed_once(node: NodeHarness, wheels: Path) -> None:
    """The same list is the same environment, unless it is incomplete; ``forget`` removes it."""
    listed = f"--no-index\n--find-links {wheels}\n-r more/other.txt\n"
    node.upload_code({"requirements.txt": listed, "more/other.txt": "tiny\n"})
    first = build(node)
    second = build(node)
    status = node.run("python -m tiny", "echo $VIRTUAL_ENV", venv=first["venv"])
    place = Path(str(first["venv"]))
    place.with_suffix(".json").unlink()
    (place / "bin" / "python").unlink()
    third = build(node)

    assert (first["built"], second["built"], third["built"]) == (True, False, True)
    assert first["venv"] == second["venv"]
    assert status["status"] == "TRAINING_JOB_COMPLETED"
    assert node.log().splitlines() == ["tiny is here", first["venv"]]
    assert (place / "bin" / "python").exists()
    node.call("forget", {"lineage": "lineage-1"})
    assert list((node.root / "environments").glob("*/bin")) == []


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("-e .", "refers to a local project"),
        ("-r ../../outside.txt", "not found in the code"),
        pytest.param(
            "--no-index\nno-such-package-anywhere", "cannot install", marks=pytest.mark.long
        ),
    ],
)
def test_requirements_that_can_not_be_kept(node: NodeHarness, text: str, error: str) -> None:
    node.upload_code({"requirements.txt": text})
    with pytest.raises(NodeProgramError, match=error) as failure:
        build(node)

    assert failure.value.kind == "RequirementsError"
    assert [path.name for path in (node.root / "environments").glob("*") if path.is_dir()] == []
    assert list((node.root / "environments").glob("*.json")) == []


def test_directories_of_the_host_are_mounted(node: NodeHarness, tmp_path: Path) -> None:
    source = tmp_path / "data"
    source.mkdir()
    (source / "x").write_text("seen")
    mounts = [
        {"host_path": str(source), "mount_location": "/trainctl-test/in", "read_only": True},
        {"host_path": str(source), "mount_location": "out", "read_only": False},
    ]
    status = node.run(
        "cat /trainctl-test/in/x",
        "(echo no > /trainctl-test/in/y) 2>/dev/null || echo read-only",
        "echo yes > out/z",
        mounts=mounts,
    )

    assert status["status"] == "TRAINING_JOB_COMPLETED"
    assert node.log().splitlines() == ["seenread-only"]
    assert (source / "z").read_text() == "yes\n"
    assert not (source / "y").exists()
    assert not Path("/trainctl-test").exists()


@pytest.mark.parametrize("case", cases("node/logout"))
def test_a_logout_ends_runs_as_logind_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Any
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for name, text in case["files"].items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    rules = logout_rules(tmp_path)

    assert rules["survives"] is case["survives"]
    assert ("enable-linger root" in json.dumps(rules)) is not case["survives"]
