"""Who is alive: real processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.support.ledgers import alive_here
from trainctl.ledger import holder as holder_module
from trainctl.ledger.holder import is_dead, this_process


def test_this_process_lives() -> None:
    """A process knows that itself is alive, and is the same holder whenever it asks."""
    assert is_dead(this_process()) is False
    assert this_process() == this_process()
    assert this_process().pid == os.getpid()


def test_another_live_process_lives() -> None:
    """The process that started this one is alive."""
    assert is_dead(alive_here()) is False


def test_a_forked_child_is_somebody_else() -> None:
    """The holder is asked for anew after a fork: the child has another process id."""
    code = "import os; from trainctl.ledger.holder import this_process as t; t(); p = os.fork()\nif p == 0: print(t().pid == os.getpid())\nelse: os.wait()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_an_ended_process_is_dead_even_before_it_is_reaped() -> None:
    """Killed and not yet waited for: a zombie does nothing any more."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        started = holder_module._started(child.pid)
        assert started is not None
        holder = replace(this_process(), pid=child.pid, started=started)
        assert is_dead(holder) is False
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead(holder) is True
    finally:
        child.kill()
        child.wait()
    assert is_dead(holder) is True


def test_a_reused_process_id_is_somebody_else() -> None:
    """The same number with another start is another process."""
    assert is_dead(replace(this_process(), started=1)) is True


def test_another_boot_is_dead_and_another_machine_unknown() -> None:
    """Of this machine's past everything has ended; of other machines nobody here can tell."""
    assert is_dead(replace(this_process(), boot="another")) is True
    assert is_dead(replace(this_process(), machine="another")) is None
    assert is_dead(replace(this_process(), machine="another", boot="another")) is None


def test_a_process_that_can_not_be_looked_at_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It exists, and its start is hidden: neither alive nor dead is claimed."""
    monkeypatch.setattr(holder_module, "_started", lambda pid: None)
    assert is_dead(replace(this_process(), who="x")) is None


def test_without_proc_ps_is_asked() -> None:
    """Where there is no /proc the start comes from ps: the same for one process, other for a later one."""
    if holder_module._output("ps", "-o", "lstart=", "-p", str(os.getpid())) == "":
        pytest.skip("this machine has no ps")
    mine = holder_module._started_by_ps(os.getpid())
    assert mine is not None
    assert mine == holder_module._started_by_ps(os.getpid())
    assert holder_module._started_by_ps(2**22 + 1) is None
