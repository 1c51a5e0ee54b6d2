"""Jobs that run in an environment of the host, as their users declare them."""

from __future__ import annotations

from pathlib import Path

from tests.support.projects.manifest_files import job, write_manifest
from tests.support.projects.project import ProjectHarness

WAIT = ("apply", "--auto-approve", "--wait")


def test_a_job_runs_with_its_requirements_and_directories(
    fresh: ProjectHarness, tmp_path: Path
) -> None:
    """The environment is built on the node, once for two jobs; the second apply has nothing to do."""
    data = tmp_path / "dataset"
    data.mkdir()
    (data / "rows").write_text("1 2 3")
    fresh.write({"src/requirements.txt": "# nothing yet\n"})
    run = job(
        "python -c 'import sys; print(sys.prefix)'",
        "cat /trainctl-test/dataset/rows",
        runtime={"requirements": "requirements.txt"},
        mounts=[{"host_path": str(data), "mount_location": "/trainctl-test/dataset"}],
    )
    write_manifest(fresh, {"a": run, "b": run})
    fresh.run(*WAIT)

    built = list(fresh.nodes.glob("*/environments/*/bin"))
    said = [fresh.run("logs", name).stdout for name in ("a", "b")]
    assert [str(one.parent) for one in built] == [said[0].splitlines()[0]]
    assert said[0] == said[1]
    assert "1 2 3" in said[0]
    assert fresh.actions() == {}
    fresh.run("destroy", "--auto-approve")
    assert list(fresh.nodes.iterdir()) == []
