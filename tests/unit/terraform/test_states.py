"""Lock and state of a node that a killed command left behind."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from trainctl.base.system.processes import Process, describe_process
from trainctl.errors import NodeError, NodeUnreachable, TrainctlError
from trainctl.store.objects import MemoryObjects
from trainctl_terraform.module import NodeModule
from trainctl_terraform.program import run_program
from trainctl_terraform.settings import TerraformNode

NODE = TerraformNode("attempt/gpu-0", "gpu", "gpu-0", inputs={"key": "k"})
LOCK, STATE = NODE.path("lock"), NODE.path("state")
RUNNING = describe_process()
ENDED = RUNNING._replace(pid=2**22 + 1, started=7)


class Module:
    """A module whose directories are next to one."""

    program, backend = Path("/bin/tofu"), ""

    def __init__(self, place: Path) -> None:
        self.directory = place / "modules" / "m"


def hold(node: NodeModule, process: Process) -> None:
    """Lock a node for a program."""
    held = {"host": "laptop", "process": process._asdict()}
    node.records.put(LOCK, json.dumps(held).encode())


@pytest.fixture
def node(tmp_path: Path) -> NodeModule:
    """A node without a state."""
    module: Any = Module(tmp_path)
    node = NodeModule(module, MemoryObjects(), NODE)
    node.records.put(NODE.path("node"), b"{}")
    node.directory.mkdir(parents=True)
    return node


def test_a_state_that_a_killed_command_did_not_save_is_saved_unless_another_computer_has_it(
    node: NodeModule,
) -> None:
    """A newer state is kept; the lock of processes that have ended is released."""
    for saved, written, kept in ((b'{"serial": 4}', 5, 5), (b'{"serial": 9}', 5, 9)):
        again = NodeModule(node.module, node.records, NODE)
        node.records.put(STATE, saved)
        hold(node, ENDED)
        node.written.write_text(json.dumps({"serial": written}))
        again.recover(Event())
        assert json.loads(node.state()) == {"serial": kept}
        assert (node.records.get(LOCK), [*node.directory.iterdir()]) == (None, [])


def test_a_program_on_another_computer_is_an_error_with_its_host(node: NodeModule) -> None:
    """A colleague can't know whether it still runs."""
    hold(node, RUNNING._replace(machine="other", boot="other"))
    with pytest.raises(NodeError, match="another command changes this node"):
        node.lock(1)
    with pytest.raises(NodeUnreachable, match="tofu changes this node on laptop") as caught:
        node.recover(Event())
    assert caught.value.code == "terraform-interrupted"


def test_a_lock_is_held_while_its_program_runs(node: NodeModule) -> None:
    """The command that saves its state may have been killed."""
    stopped = Event()
    stopped.set()
    hold(node, RUNNING)
    with pytest.raises(TrainctlError, match="waiting for another command"):
        node.recover(stopped)
    assert node.records.get(LOCK)
    hold(node, ENDED)
    node.recover(stopped)
    assert node.records.get(LOCK) is None


def test_what_a_killed_command_has_changed_is_recorded(node: NodeModule) -> None:
    """Such as another address of a machine that its module has changed in place."""
    output = {"address": "10.0.0.2", "user": "u"}
    node.records.put(STATE, json.dumps({"outputs": {"node": {"value": output}}}).encode())
    hold(node, ENDED)
    node.recover(Event())
    assert json.loads(node.records.get(NODE.path("node")) or b"{}")["output"] == output


def test_a_state_is_saved_while_the_program_runs(node: NodeModule) -> None:
    """A file that it is still writing is read again."""
    for text, saved in (('{"serial": 1}', 1), ('{"serial": 2', 1), ('{"serial": 2}', 2)):
        node.written.write_text(text)
        node.save()
        assert json.loads(node.state()) == {"serial": saved}


def test_a_program_does_not_begin_before_its_lock_is_recorded(tmp_path: Path) -> None:
    """Nor if the process that starts it is killed before: its standard input ends then."""
    made = tmp_path / "made"
    command = ["touch", str(made)]

    def refuse(pid: int) -> None:
        raise NodeError("locked")

    with pytest.raises(NodeError, match="locked"):
        run_program(command, tmp_path, {}, Event(), started=refuse)
    assert not made.exists()
    run_program(command, tmp_path, {}, Event(), started=lambda pid: None)
    assert made.exists()
