"""If the kernel allows no private mounts, the plan says so, and relative mounts become links."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.support.projects.project import ProjectHarness

NO_MOUNTS = """\
echo 0 > /proc/sys/user/max_user_namespaces
exec setpriv --bounding-set=-all --inh-caps=-all "$@"
"""
"""Run as root of a user namespace: no further one can be made, and no capability is left."""


def run_without_mounts(
    project: ProjectHarness, *arguments: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainctl", *arguments]
    return subprocess.run(
        ["unshare", "-Ur", "sh", "-c", NO_MOUNTS, "sh", *command],
        cwd=project.directory,
        env=project.environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=240,
        check=False,
    )


def test_absolute_mounts_are_refused_and_relative_ones_are_links(demo: ProjectHarness) -> None:
    if shutil.which("setpriv") is None or run_without_mounts(demo, "version").returncode != 0:
        pytest.skip("needs setpriv, and unshare -Ur to be allowed")
    refused = run_without_mounts(demo, "apply", "--auto-approve")
    assert refused.returncode == 1
    assert "job.sft: /app/models/tiny cannot be created on local/local-0" in refused.stderr
    assert "Use a relative mount_location" in refused.stderr
    assert not demo.mirror.exists()

    manifest = (demo.directory / "trainctl.yaml").read_text()
    demo.write({"trainctl.yaml": manifest.replace("/app/models/tiny", "models/tiny")})
    planned = run_without_mounts(demo, "plan")
    applied = run_without_mounts(demo, "apply", "--auto-approve", "--wait")
    log = demo.run("logs", "sft").stdout

    assert "read-only access is not enforced" in planned.stdout
    assert applied.returncode == 0, applied.stderr
    assert "weights ['config.json', 'model.bin']" in log
