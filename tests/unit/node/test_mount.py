"""Weights where the job wants them, read-only, and nowhere else; as root and as a user without privileges."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.node_program.nodes import NodeHarness, wait_for
from trainctl.base.system.processes import find_by_environment

pytestmark = pytest.mark.integration

TARGETS = ["/app/models/x", "/opt/trainctl-test/x", "/tmp/trainctl-test/x", "/usr/share/trainctl/x"]


def _host(node: NodeHarness) -> tuple[list[str], list[str]]:
    """What a mount would change: directories, and mounts of this node or where the tests want them. Others mount, too."""
    entries = sorted(
        str(path) for top in ("/", "/opt", "/usr/share") for path in Path(top).iterdir()
    )
    ours = (str(node.base), *TARGETS)
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return entries, [line for line in mounts if any(one in line for one in ours)]


@pytest.fixture
def private(any_node: NodeHarness) -> NodeHarness:
    """A node on which private mounts work, with one delivered tree."""
    flags = ["-m"] if os.geteuid() == 0 and not any_node.prefix else ["-U", "-r", "-m"]
    if shutil.which("unshare") is None:
        pytest.skip("no unshare program to tell what this kernel allows")
    if subprocess.run(
        [*any_node.prefix, "unshare", *flags, "true"], capture_output=True
    ).returncode:
        pytest.skip("this kernel lets this user make no private mounts")
    facts = any_node.call("facts", {"data": str(any_node.data), "mounts": TARGETS})
    assert (facts["mount"], facts["blocked"]) == ("namespace", [])
    any_node.mirror.add("config.json", b"{}")
    any_node.mirror.add("deep/model.bin", b"weights")
    any_node.deliver()
    return any_node


def _mounted(node: NodeHarness, *targets: str) -> list[dict[str, str]]:
    listing = node.mirror.listing.id
    return [
        {"name": f"weights.w{number}", "listing": listing, "mount_location": target}
        for number, target in enumerate(targets)
    ]


def test_weights_appear_for_the_job_only(private: NodeHarness) -> None:
    """Mounts below directories that exist and that don't are seen by the job, and the host is as before."""
    before = _host(private)

    status = private.run(
        "sleep 0.5",
        *(f"cat {target}/deep/model.bin" for target in TARGETS),
        weights=_mounted(private, *TARGETS),
    )

    assert status["status"] == "TRAINING_JOB_COMPLETED", status["error"]
    assert (status["mount"], status["weights_mode"]) == ("namespace", "read-only")
    assert private.log() == "weights" * len(TARGETS)
    assert _host(private) == before
    assert not Path("/app/models/x").exists()


def test_a_run_is_entered_with_its_mounts(private: NodeHarness) -> None:
    """In its user namespace, too, as the user and in its directory; shells that stay are killed at its end."""
    target, end = TARGETS[0], private.base / "end"
    commands = f"until [ -e {end} ]; do sleep 0.05; done"
    private.start(private.spec(commands, weights=_mounted(private, target)))
    line = f"cat {target}/deep/model.bin; pwd; id -u; sleep 1000 >/dev/null 2>&1 & exit 5"
    request = {"root": str(private.root), "key": "run-1", "command": [line], "with_secrets": False}
    argv = [*private.argv("enter")[:-1], json.dumps(request), "enter"]

    def enter() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, env=private.environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )

    wait_for(lambda: private.status()["status"] == "TRAINING_JOB_RUNNING")
    done = enter()
    user = "65534" if private.prefix else str(os.geteuid())
    work = private.directory() / "work"
    assert (done.stdout, done.returncode) == (f"weights{work}\n{user}\n", 5), done.stderr
    end.touch()
    private.ended()
    mark = f"TRAINCTL_RUN_DIRECTORY={private.directory()}".encode()
    assert find_by_environment(mark) == []


def test_mounted_weights_cant_be_written(private: NodeHarness) -> None:
    """Writing, deleting and making files under the mount fail with EROFS, for root as well."""
    script = (
        "import errno, os\n"
        "def attempt(f, *a):\n"
        "    try: f(*a)\n"
        "    except OSError as e: print(errno.errorcode[e.errno])\n"
        "    else: print('done')\n"
        "attempt(os.unlink, '/app/models/x/config.json')\n"
        "attempt(os.mkdir, '/app/models/x/new')\n"
        "attempt(os.chmod, '/app/models/x/config.json', 0o777)\n"
        "attempt(open, '/app/models/x/config.json', 'r+')\n"
    )
    private.upload_code({"attempt.py": script})

    private.run("python3 attempt.py", weights=_mounted(private, "/app/models/x"))

    *found, opening = private.log().split()
    assert found == ["EROFS"] * 3
    assert opening in (
        "EROFS",
        "EACCES",
    )  # the mode is looked at first, which holds nobody but root back
    assert (private.tree / "config.json").read_bytes() == b"{}"


def test_a_relative_mount_is_in_the_working_directory(private: NodeHarness) -> None:
    """A relative mount is read-only too, and real to the job, no link."""
    status = private.run(
        "cat weights/w/config.json",
        "test ! -L weights/w",
        "! touch weights/w/new",
        weights=_mounted(private, "weights/w"),
    )

    assert status["status"] == "TRAINING_JOB_COMPLETED", private.log()
    assert private.log().startswith("{}")


def test_the_job_does_not_see_the_cache(private: NodeHarness) -> None:
    """The node's cache directory is empty to the job, and can't be written to."""
    cache = private.root / "cache"

    private.run(f"ls -A {cache}", f"! touch {cache}/x 2>&1", weights=_mounted(private, "/app/w"))

    assert "blobs" not in private.log()
    assert "touch" in private.log()
    assert (cache / "blobs").is_dir()


def test_existing_entries_stay_visible_and_usable(private: NodeHarness) -> None:
    """Beside the mount, what /, /tmp and the rest held is still there; /proc, /dev and /tmp work."""
    marker = Path("/tmp") / f"trainctl-test-{os.getpid()}"
    marker.write_text("beside")
    marker.chmod(0o644)
    try:
        status = private.run(
            f"cat {marker}",
            "test -r /etc/passwd && test -d /usr/share/trainctl && ls /usr/share > listed",
            "test $(wc -l < listed) -gt 1",
            "echo x > /dev/null; test -e /proc/$$/stat; test -d /sys",
            "touch /tmp/made-by-the-job && test -e /tmp/made-by-the-job",
            "test $(readlink /bin || echo none) = "
            + (str(Path("/bin").readlink()) if Path("/bin").is_symlink() else "none"),
            weights=_mounted(private, *TARGETS),
        )
    finally:
        marker.unlink()

    assert status["status"] == "TRAINING_JOB_COMPLETED", (status, private.log())
    assert private.log() == "beside"
    assert not Path("/tmp/made-by-the-job").exists()


def test_the_job_stays_who_it_is(private: NodeHarness) -> None:
    """User and group inside are those outside."""
    private.run("id -u; id -g", weights=_mounted(private, "/app/w"))

    expected = "0\n0\n" if not private.prefix else "65534\n65534\n"
    assert private.log() == (expected if os.geteuid() == 0 else f"{os.getuid()}\n{os.getgid()}\n")


def test_absolute_links_are_bound_and_writable(private: NodeHarness) -> None:
    """A link at an absolute path is the target's directory, and what the job writes stays there."""
    target = private.base / "kept"
    target.mkdir()
    target.chmod(0o777)

    private.run(
        "echo x > /mnt/trainctl-ckpts/file",
        links=[{"path": "/mnt/trainctl-ckpts", "target": str(target)}],
    )

    assert (target / "file").read_text() == "x\n"
    assert not Path("/mnt/trainctl-ckpts").exists()


def test_weights_never_hide_code(private: NodeHarness) -> None:
    """Where the code has files at the mount, the deployment fails and says so."""
    private.upload_code({"weights/w/own.txt": "own"})

    status = private.run("true", weights=_mounted(private, "weights/w"))

    assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert "weights/w" in status["error"]


def test_undelivered_weights_fail_the_deployment(private: NodeHarness) -> None:
    """A listing without a sealed tree is never mounted."""
    weights = [{"name": "weights.other", "listing": "0" * 64, "mount_location": "/app/w"}]

    status = private.run("true", weights=weights)

    assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert "weights.other" in status["error"]


@pytest.mark.parametrize(
    "path", ["/", "/proc/x", "/sys/x", "/dev/x", "/etc/passwd", "/etc/passwd/x"]
)
def test_impossible_mounts_are_blocked_beforehand(node: NodeHarness, path: str) -> None:
    """Facts names each mount that can't be, with a reason, and lets the others pass."""
    facts = node.call("facts", {"data": str(node.data), "mounts": ["/app/fine", path]})

    assert [one["path"] for one in facts["blocked"]][-1] == path
    assert all(one["why"] for one in facts["blocked"])


def test_a_mount_never_hides_the_node(node: NodeHarness) -> None:
    """A mount at or above the node's own directories is blocked."""
    facts = node.call("facts", {"data": str(node.data), "mounts": [str(node.base)]})

    assert [one["path"] for one in facts["blocked"]] == [str(node.base)]


def test_facts_writes_nothing_under_root(node: NodeHarness) -> None:
    """Looking at a node does not make its directory."""
    node.call("facts", {"data": str(node.data), "mounts": ["/app/models/x"]})

    assert not node.root.exists()
