"""Process identity: checked against real processes of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from trainctl.base.system.processes import describe_process, is_alive, is_dead, process_record


def test_this_process_and_its_parent_are_alive() -> None:
    assert describe_process() == describe_process(os.getpid())
    assert is_dead(describe_process()) is False
    assert is_dead(describe_process(os.getppid())) is False
    assert is_alive(process_record())


def test_an_ended_process_is_dead_even_before_it_is_reaped() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        known = describe_process(child.pid)
        assert is_dead(known) is False
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead(known) is True
        assert not is_alive(known._asdict())
    finally:
        child.kill()
        child.wait()
    assert is_dead(known) is True


def test_a_reused_pid_and_an_earlier_boot_are_dead_and_another_machine_unknown() -> None:
    mine = describe_process()
    assert is_dead(mine._replace(started=1)) is True
    assert is_dead(mine._replace(boot="another")) is True
    assert is_dead(mine._replace(boot="another", machine="another")) is None
    assert is_dead(mine._replace(machine="renamed since")) is False
    assert not is_alive(mine._replace(boot="another", machine="another")._asdict())


@pytest.mark.parametrize("record", [None, {}, {"pid": 1}, {**process_record(), "pid": "1"}])
def test_what_is_not_an_identity_is_not_alive(record: dict[str, object] | None) -> None:
    assert not is_alive(record)


def test_pids_are_not_compared_across_namespaces() -> None:
    """In another pid namespace of the same machine, this pid is another process, and neither alive nor dead is known."""
    code = (
        "import json, sys; from trainctl.base.system.processes import Process, is_dead;"
        "print(is_dead(Process(**json.loads(sys.argv[1]))))"
    )
    words = ["unshare", "-rpf", "--mount-proc", sys.executable, "-c", code]
    identity = json.dumps(process_record())
    done = subprocess.run([*words, identity], capture_output=True, text=True)
    if "unshare" in done.stderr:
        pytest.skip("this machine can't make namespaces")
    assert done.stdout.strip() == "None"
