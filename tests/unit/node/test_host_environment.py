"""Environments of the host: what they lack, what is built once, what is active in a job."""

from __future__ import annotations

import json
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.node_program.nodes import NodeHarness, NodeProgramError
from tests.support.tiers import one_day_in
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
    """The same list is the same environment, whatever else the code holds; the job finds it active after its profile."""
    listed = f"--no-index\n--find-links {wheels}\n-r more/other.txt\n"
    node.upload_code({"requirements.txt": listed, "more/other.txt": "tiny\n"})
    first = build(node)
    second = build(node)
    status = node.run("python -m tiny", "echo $VIRTUAL_ENV", host={"venv": first["venv"]})

    assert (first["built"], second["built"]) == (True, False)
    assert first["venv"] == second["venv"]
    assert status["status"] == "TRAINING_JOB_COMPLETED"
    assert node.log().splitlines() == ["tiny is here", first["venv"]]


@one_day_in(4)
def test_what_is_half_built_counts_for_nothing(node: NodeHarness, wheels: Path) -> None:
    """Without its seal an environment is built anew, and it goes with the only lineage that used it."""
    node.upload_code({"requirements.txt": f"--no-index\n--find-links {wheels}\ntiny\n"})
    place = Path(str(build(node)["venv"]))
    place.with_suffix(".json").unlink()
    (place / "bin" / "python").unlink()

    assert build(node)["built"]
    assert (place / "bin" / "python").exists()
    node.call("forget", {"lineage": "lineage-1"})
    assert list((node.root / "environments").glob("*/bin")) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-e .", "refers to a local project"),
        ("./pkg", "refers to a local project"),
        ("-r ../../outside.txt", "not found in the code"),
        pytest.param("--no-index\nno-such-package-anywhere", "cannot install", marks=one_day_in(2)),
    ],
)
def test_requirements_that_can_not_be_kept(node: NodeHarness, text: str, said: str) -> None:
    """Each says what is wrong, and nothing is left of it."""
    node.upload_code({"requirements.txt": text})
    with pytest.raises(NodeProgramError, match=said) as failure:
        build(node)

    assert failure.value.kind == "requirements"
    assert [one.name for one in (node.root / "environments").glob("*") if one.is_dir()] == []
    assert list((node.root / "environments").glob("*.json")) == []


def test_what_hosts_lack(node: NodeHarness, tmp_path: Path) -> None:
    """Programs and environments that are missing are reported; what is there is not."""
    made = tmp_path / "made"
    venv.create(made)
    wanted = [
        {"venv": None, "program": "no-such-program"},
        {"venv": None, "program": sys.executable},
        {"venv": str(tmp_path / "gone"), "program": "python"},
        {"venv": str(made), "program": "python"},
        {"venv": None, "program": ""},
    ]
    facts = node.call("facts", {"data": str(node.data), "hosts": wanted, "sources": ["/", "/none"]})

    missing, found, no_venv, *rest = [one["lacks"] for one in facts["hosts"]]
    assert "no-such-program" in missing[0]
    assert f"{tmp_path}/gone" in no_venv[0]
    assert (found, rest) == ([], [[], []])
    assert facts["absent"] == ["/none"]


def test_directories_of_the_host_are_mounted(node: NodeHarness, tmp_path: Path) -> None:
    """Read-only unless they say otherwise; at an absolute place for the job alone, or in its working directory."""
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


SYSTEMD = {"run/systemd/system/x": ""}
SESSION = {"proc/self/cgroup": "0::/user.slice/user-0.slice/session-3.scope\n"}
MANAGER = {"proc/self/cgroup": "0::/user.slice/user-0.slice/user@0.service/app.slice/term.scope\n"}
LINGER = {"var/lib/systemd/linger/root": ""}
KILL = {"etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\nKillExcludeUsers=\n"}
DROP_IN = {"usr/lib/systemd/logind.conf.d/10-x.conf": "[Login]\nKillUserProcesses=no\n"}
OTHERS = {"etc/systemd/logind.conf.d/20-y.conf": "[Login]\nKillOnlyUsers=ann bob\n"}


@pytest.mark.parametrize(
    ("files", "survives"),
    [
        ({}, True),
        ({**SYSTEMD, **SESSION}, True),
        ({**SYSTEMD, **SESSION, **KILL}, False),
        ({**SYSTEMD, **SESSION, "etc/systemd/logind.conf": "KillUserProcesses=yes"}, True),
        ({**SYSTEMD, **SESSION, **KILL, **DROP_IN}, True),
        ({**SYSTEMD, **SESSION, **KILL, **OTHERS}, True),
        ({**SYSTEMD, **SESSION, **KILL, **LINGER}, True),
        ({**SYSTEMD, **MANAGER}, False),
        ({**SYSTEMD, **MANAGER, **LINGER}, True),
    ],
)
def test_logout_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], survives: bool
) -> None:
    """Logind's configuration, lingering and where we run decide; what doesn't survive comes with the remedy."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    rules = logout_rules(tmp_path)

    assert rules["survives"] is survives
    assert ("enable-linger root" in json.dumps(rules)) is not survives
