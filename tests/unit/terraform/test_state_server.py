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
from trainctl_terraform.state_server import NodeStateDocument


class ModuleDirectory:
    """A module whose only node works in one directory."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def directory(self, id_: str) -> Path:
        return self.place


def test_a_state_that_could_not_be_sent_is_saved_unless_another_computer_has_it(
    tmp_path: Path,
) -> None:
    """A newer state is kept; the lock of a process that has ended is released."""
    objects = MemoryObjects()
    state = NodeStateDocument(objects, "a")
    module: Any = ModuleDirectory(tmp_path)
    node = NodeModule(module, "a", state, {"key": "k"}, Event())
    for saved, unsaved, kept in ((b'{"serial": 4}', 5, 5), (b'{"serial": 9}', 5, 9)):
        state.write(saved)
        state.process = describe_process()._replace(pid=2**22 + 1, started=7)
        assert state.lock(b'{"ID": "1"}') is None
        (tmp_path / "errored.tfstate").write_text(json.dumps({"serial": unsaved}))
        node.recover()
        assert state.load() == {"serial": kept}
        assert (state.holder(), [*tmp_path.iterdir()]) == (None, [])

    state.process = describe_process()._replace(machine="other", boot="other")
    assert state.lock(b'{"ID": "1"}') is None
    assert state.lock(b'{"ID": "2"}') == b'{"ID": "1"}'
    module.program = type("Program", (), {"name": "tofu"})
    with pytest.raises(NodeUnreachable, match="was interrupted on") as caught:
        node.recover()
    assert caught.value.code == "terraform-interrupted"
