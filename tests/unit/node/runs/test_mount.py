"""Weights where the job wants them, read-only, and nowhere else; as root and as a user without privileges."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_program.nodes import NodeHarness, wait_for
from trainctl.base.system.processes import find_by_environment

pytestmark = pytest.mark.integration

TARGETS = ["/app/models/x", "/opt/trainctl-test/x", "/tmp/trainctl-test/x", "/usr/share/trainctl/x"]


def state_of_host(node: NodeHarness) -> tuple[list[str], list[str]]:
    """What a mount would change: directories, and mounts of this node or at the targets."""
    entries = sorted(
        str(path) for top in ("/", "/opt", "/usr/share") for path in Path(top).iterdir()
    )
    ours = (str(node.base), *TARGETS)
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return entries, [line for line in mounts if any(path in line for path in ours)]


@pytest.fixture
def private(any_node: NodeHarness) -> NodeHarness:
    """A node on which private mounts work, with one delivered tree."""
    flags = ["-m"] if os.geteuid() == 0 and not any_node.prefix else ["-U", "-r", "-m"]
    if shutil.which("unshare") is None:
        pytest.skip("no unshare program to tell what this kernel allows")
    words = [*any_node.prefix, "unshare", *flags, "true"]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip("this kernel lets this user make no private mounts")
    facts = any_node.call("facts", {"data": str(any_node.data), "mounts": TARGETS})
    assert (facts["mount"], facts["blocked"]) == ("namespace", [])
    any_node.mirror.add("config.json", b"{}")
    any_node.mirror.add("deep/model.bin", b"weights")
    any_node.deliver()
    return any_node


def weights_at(node: NodeHarness, *targets: str) -> list[dict[str, str]]:
    listing = node.mirror.listing.id
    return [
        {"address": f"weights.w{number}", "listing": listing, "mount_location": target}
        for number, target in enumerate(targets)
    ]


@pytest.fixture
def marker() -> Iterator[Path]:
    """A file in /tmp that every user can read."""
    path = Path("/tmp") / f"trainctl-test-{os.getpid()}"
    path.write_text("of the host")
    path.chmod(0o644)
    yield path
    path.unlink()


def test_weights_appear_for_the_job_only(private: NodeHarness, marker: Path) -> None:
    """At absolute and relative locations. The job keeps its user and sees the host's entries, but not the node's cache."""
    before = state_of_host(private)
    cache = private.root / "cache"

    status = private.run(
        *(f"cat {target}/deep/model.bin" for target in (*TARGETS, "weights/w")),
        "test ! -L weights/w; ! touch weights/w/new 2>/dev/null",
        f"cat {marker}; id -u; ls -A {cache}; ! touch {cache}/x 2>/dev/null",
        "test -r /etc/passwd && test -d /usr/share/trainctl && ls /usr/share > listed",
        "test $(wc -l < listed) -gt 1",
        "echo x > /dev/null; test -e /proc/$$/stat; test -d /sys",
        "touch /tmp/made-by-the-job && test -e /tmp/made-by-the-job",
        weights=weights_at(private, *TARGETS, "weights/w"),
    )

    user = 65534 if private.prefix else os.geteuid()
    assert status["status"] == "TRAINING_JOB_COMPLETED", (status["error"], private.log())
    assert (status["mount"], status["weights_mode"]) == ("namespace", "read-only")
    assert private.log() == "weights" * 5 + f"of the host{user}\n"
    assert state_of_host(private) == before
    assert (cache / "blobs").is_dir()
    assert not Path("/app/models/x").exists()
    assert not Path("/tmp/made-by-the-job").exists()


def test_a_run_is_entered_with_its_mounts(private: NodeHarness) -> None:
    """As the user and in its directory; processes that stay are killed at its end."""
    target, end = TARGETS[0], private.base / "end"
    commands = f"until [ -e {end} ]; do sleep 0.05; done"
    private.start(private.spec(commands, weights=weights_at(private, target)))
    line = f"cat {target}/deep/model.bin; pwd; id -u; sleep 1000 >/dev/null 2>&1 & exit 5"
    request = {"root": str(private.root), "key": "run-1", "command": [line], "with_secrets": False}
    argv = [*private.argv("enter")[:-1], json.dumps(request), "enter"]
    wait_for(lambda: private.status()["status"] == "TRAINING_JOB_RUNNING")

    done = subprocess.run(
        argv,
        env=private.environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )

    user = "65534" if private.prefix else str(os.geteuid())
    work = private.directory() / "work"
    assert (done.stdout, done.returncode) == (f"weights{work}\n{user}\n", 5), done.stderr
    end.touch()
    private.ended()
    mark = f"TRAINCTL_RUN_DIRECTORY={private.directory()}".encode()
    assert find_by_environment(mark) == []


def test_mounted_weights_cant_be_written(private: NodeHarness) -> None:
    """Not by root either."""
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

    private.run("python3 attempt.py", weights=weights_at(private, "/app/models/x"))

    *results, opening = private.log().split()
    assert results == ["EROFS"] * 3
    assert opening in ("EROFS", "EACCES")  # the mode is checked first, except for root
    assert (private.tree / "config.json").read_bytes() == b"{}"


def test_an_absolute_link_is_a_writable_mount(private: NodeHarness) -> None:
    target = private.base / "kept"
    target.mkdir()
    target.chmod(0o777)

    private.run(
        "echo x > /mnt/trainctl-ckpts/file",
        links=[{"path": "/mnt/trainctl-ckpts", "target": str(target)}],
    )

    assert (target / "file").read_text() == "x\n"
    assert not Path("/mnt/trainctl-ckpts").exists()


def test_weights_over_code_and_absent_weights_fail_the_deployment(private: NodeHarness) -> None:
    private.upload_code({"weights/w/own.txt": "own"})
    hiding = private.run("true", weights=weights_at(private, "weights/w"))
    absent = {"address": "weights.other", "listing": "0" * 64, "mount_location": "/app/w"}
    undelivered = private.run("true", key="run-2", weights=[absent])

    for status, cause in ((hiding, "weights/w"), (undelivered, "weights.other")):
        assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
        assert cause in status["error"]


def test_impossible_mounts_are_reported_beforehand(node: NodeHarness) -> None:
    """Also those that would hide the node's own directories. Nothing is created under ROOT."""
    paths = ["/", "/proc/x", "/sys/x", "/dev/x", "/etc/passwd", "/etc/passwd/x", str(node.base)]
    facts = node.call("facts", {"data": str(node.data), "mounts": ["/app/fine", *paths]})

    assert [row["path"] for row in facts["blocked"]] == paths
    assert all(row["why"] for row in facts["blocked"])
    assert not node.root.exists()


NO_MOUNTS = """\
echo 0 > /proc/sys/user/max_user_namespaces
exec setpriv --bounding-set=-all --inh-caps=-all "$@"
"""
"""Run as root of a user namespace: no further one can be made, and no capability is left."""


def test_without_private_mounts_relative_mounts_are_links(tmp_path: Path) -> None:
    """Absolute ones, and those that lead out of the working directory, are refused."""
    prefix = ["unshare", "-Ur", "sh", "-c", NO_MOUNTS, "sh"]
    if shutil.which("setpriv") is None or subprocess.run([*prefix, "true"]).returncode:
        pytest.skip("needs setpriv, and unshare -Ur to be allowed")
    node = NodeHarness(tmp_path, prefix=prefix)
    node.mirror.add("config.json", b"{}")
    node.deliver()
    facts = node.call("facts", {"data": str(node.data), "mounts": ["/app/x"]})
    linked = node.run("cat w/config.json; readlink w", weights=weights_at(node, "w"))
    refused = [
        node.run("true", key=f"run-{number}", weights=weights_at(node, location))
        for number, location in enumerate(("/app/x", "../x"), start=2)
    ]

    assert facts["mount"] == "link"
    assert "private mounts don't work on this node: " in facts["blocked"][0]["why"]
    assert (linked["mount"], linked["weights_mode"]) == ("link", "advisory"), linked["error"]
    assert node.log() == f"{{}}{node.tree}\n"
    assert {status["status"] for status in refused} == {"TRAINING_JOB_DEPLOY_FAILED"}
    assert "/app/x" in refused[0]["error"]
