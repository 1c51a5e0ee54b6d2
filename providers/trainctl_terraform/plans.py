"""What the program would do for a node: its own plan, reduced to what a review needs, and kept to be applied as it is."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from trainctl.base.json import digest
from trainctl.errors import StalePlan
from trainctl.plugin_api.machines import MachineChange, MachinePlan
from trainctl.plugin_api.provider import Node
from trainctl_terraform.module import NodeModule
from trainctl_terraform.settings import node_facts
from trainctl_terraform.state_server import NodeStateDocument

_MOST_CHARACTERS = 200
_DONE = frozenset({("no-op",), ("read",)})


def plan_creation(module: NodeModule, cluster: str, name: str, key: str) -> MachinePlan:
    """Run the program's ``plan`` for a node."""
    state = _digest(module.state.read() or b"")
    file, document = module.plan()
    program = module.module.program
    planner = f"{program.name} {program.version}"
    changes = tuple(_changes(document, module.inputs))
    covers = [planner, module.module.digest, _generic(document["resource_changes"], module.inputs)]
    kept = {
        "plan": base64.b64encode(file).decode(),
        "login": module.inputs["public_key"],
        "module": module.module.digest,
        "state": state,
    }
    output = document.get("output_changes", {}).get("node", {}).get("after")  # known members
    planned = Node(cluster, name, **node_facts(module.module.settings, output or {}))
    return MachinePlan(name, key, planner, changes, digest(covers), json.dumps(kept), planned)


def plan_deletion(name: str, key: str, state: NodeStateDocument) -> MachinePlan:
    """Return that all resources in the state of a node are deleted."""
    document = state.load()
    changes = [
        MachineChange(
            ".".join(filter(None, (each.get("module"), each["type"], each["name"]))), ("delete",)
        )
        for each in document.get("resources") or ()
        if each.get("mode") == "managed"
    ]
    planner = f"terraform {document.get('terraform_version', '')}".strip()
    return MachinePlan(
        name, key, planner, tuple(changes), digest([each.address for each in changes])
    )


def apply_reviewed(module: NodeModule, reviewed: MachinePlan) -> None:
    """Apply a reviewed plan as it is, or finish it after an interruption; StalePlan if something else would be done."""
    kept = json.loads(reviewed.file)
    if kept["login"] != module.inputs["public_key"]:
        raise StalePlan(
            f"the plan of {reviewed.node} was made on another computer, which has its login key",
            "Apply it there, or plan again.",
        )
    if kept["module"] != module.module.digest:
        raise StalePlan(
            f"module {module.module.settings.module} has changed since the plan was made",
            "Plan again.",
        )
    module.recover()
    if kept["state"] == _digest(module.state.read() or b""):
        module.apply(base64.b64decode(kept["plan"]))
        return
    file, document = module.plan()
    allowed = {change.address for change in reviewed.changes}
    more = [
        each.address for each in _changes(document, module.inputs) if each.address not in allowed
    ]
    if more:
        raise StalePlan(
            f"the state of {reviewed.node} has changed since the plan was made",
            f"To finish it, {', '.join(more)} would change, too. Plan again.",
        )
    module.apply(file)


def _changes(document: Mapping[str, Any], inputs: Mapping[str, str]) -> Iterator[MachineChange]:
    """Yield what changes, without values that are sensitive, unknown or long, or inputs of trainctl."""
    for item in document.get("resource_changes") or ():
        change = item["change"]
        if tuple(change["actions"]) in _DONE:
            continue
        hidden, after = change.get("after_sensitive") or {}, change.get("after") or {}
        before = change.get("before") or {}
        values = {
            name: json.loads(_generalised(json.dumps(value), inputs))
            for name, value in sorted(after.items())
            if not (hidden is True or hidden.get(name))
            and value not in (None, [], {}, before.get(name), *inputs.values())
            and len(json.dumps(value)) <= _MOST_CHARACTERS
        }
        yield MachineChange(
            item["address"],
            tuple(change["actions"]),
            item.get("action_reason") or "",
            values,
            tuple(".".join(map(str, path)) for path in change.get("replace_paths") or ()),
        )


def _generic(changes: Any, inputs: Mapping[str, str]) -> str:
    """Return the changes as text, without sensitive values and with the names of inputs for their values."""
    shown = []
    for item in changes or ():
        change = item["change"]
        after = _masked(change.get("after"), change.get("after_sensitive"))
        unknown, paths = change.get("after_unknown"), change.get("replace_paths")
        shown.append([item["address"], change["actions"], after, unknown, paths])
    return _generalised(json.dumps(shown, sort_keys=True), inputs)


def _generalised(text: str, inputs: Mapping[str, str]) -> str:
    """Write the names of inputs for their values in JSON."""
    for name, value in inputs.items():
        text = text.replace(json.dumps(value)[1:-1], f"<{name}>")
    return text


def _masked(value: Any, sensitive: Any) -> Any:
    if sensitive is True:
        return "<sensitive>"
    if isinstance(value, dict) and isinstance(sensitive, dict):
        return {name: _masked(member, sensitive.get(name)) for name, member in value.items()}
    if isinstance(value, list) and isinstance(sensitive, list):
        return [_masked(*pair) for pair in zip(value, sensitive, strict=False)]
    return value


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
