"""Where the kernel lets nobody make private mounts: said in the plan, and the job runs with links where that will do."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in

NO_MOUNTS = """\
echo 0 > /proc/sys/user/max_user_namespaces
exec setpriv --bounding-set=-all --inh-caps=-all "$@"
"""
"""Run as root of a user namespace: no further one can be made, and no capability is left."""


@pytest.fixture
def poor(demo: ProjectHarness) -> ProjectHarness:
    """The demo project, if a machine without private mounts can be played here."""
    if shutil.which("setpriv") is None or _poorly(demo, "version").returncode != 0:
        pytest.skip("needs setpriv, and unshare -Ur to be allowed")
    return demo


def _poorly(made: ProjectHarness, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            "unshare",
            "-Ur",
            "sh",
            "-c",
            NO_MOUNTS,
            "sh",
            sys.executable,
            "-m",
            "trainctl",
            *arguments,
        ],
        cwd=made.directory,
        env=made.environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )


@one_day_in(5)
def test_an_absolute_mount_is_refused_in_the_plan(poor: ProjectHarness) -> None:
    """The plan names the job, the path and the node, says what to write instead, and nothing is begun."""
    done = _poorly(poor, "apply", "--auto-approve")

    assert done.returncode == 1
    assert "job.sft: /app/models/tiny cannot be created on local/local-0" in done.stderr
    assert "Use a relative mount_location" in done.stderr
    assert not poor.mirror.exists()


@one_day_in(7)
def test_a_relative_mount_becomes_a_link_and_the_plan_says_so(poor: ProjectHarness) -> None:
    """The job finds its weights by a link, which the plan calls what it is."""
    manifest = (poor.directory / "trainctl.yaml").read_text()
    poor.write({"trainctl.yaml": manifest.replace("/app/models/tiny", "models/tiny")})
    planned = _poorly(poor, "plan")
    applied = _poorly(poor, "apply", "--auto-approve", "--wait")
    log = poor.run("logs", "sft").stdout

    assert "read-only access is not enforced" in planned.stdout
    assert applied.returncode == 0, applied.stderr
    assert "weights ['config.json', 'model.bin']" in log
