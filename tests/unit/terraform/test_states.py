"""Lock and state of a node that a killed command left behind."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from trainctl.base.system.processes import describe_process
from trainctl.errors import NodeUnreachable
from trainctl.store.objects import MemoryObjects
from trainctl_terraform.module import NodeModule
from trainctl_terraform.states import NodeState

STATE, LOCK = "nodes/a/state.json", "nodes/a/lock.json"


class Module:
    """A module whose directories are next to one."""

    program = "/bin/tofu"

    def __init__(self, place: Path) -> None:
        self.directory = place / "modules" / "m"


def test_a_state_that_could_not_be_sent_is_saved_unless_another_computer_has_it(
    tmp_path: Path,
) -> None:
    """A newer state is kept; the lock of processes that have ended is released."""
    objects = MemoryObjects()
    state = NodeState(objects, "a")
    module: Any = Module(tmp_path)
    node = NodeModule(module, "a", state, {"key": "k"})
    node.directory.mkdir(parents=True)
    ended = describe_process()._replace(pid=2**22 + 1, started=7)
    for saved, unsaved, kept in ((b'{"serial": 4}', 5, 5), (b'{"serial": 9}', 5, 9)):
        assert state.answer("POST", saved) == (200, b"")
        state.processes = [ended, ended]
        assert state.answer("LOCK", b'{"ID": "1"}') == (200, b"")
        (node.directory / "errored.tfstate").write_text(json.dumps({"serial": unsaved}))
        node.recover(Event())
        assert state.load() == {"serial": kept}
        assert (state.holder(), [*node.directory.iterdir()]) == (None, [])

    for other in (ended, describe_process()):
        state.processes = [ended, other._replace(machine="other", boot="other")]
        state.answer("LOCK", b'{"ID": "1"}')
        assert state.answer("LOCK", b'{"ID": "2"}') == (423, b'{"ID": "1"}')
        with pytest.raises(NodeUnreachable, match="tofu changes this node on") as caught:
            node.recover(Event())
        assert caught.value.code == "terraform-interrupted"
        state.unlock()


def test_a_lock_is_held_while_one_of_its_processes_runs() -> None:
    """The process that saves the state, or the program, may be killed alone."""
    state = NodeState(MemoryObjects(), "a")
    own = describe_process()
    ended = own._replace(pid=2**22 + 1, started=7)
    for processes, dead in (([ended, own], False), ([own, ended], False), ([ended, ended], True)):
        state.processes = processes
        state.answer("LOCK", b"{}")
        holder = state.holder()
        assert holder is not None
        assert holder[1] is dead
        state.unlock()
