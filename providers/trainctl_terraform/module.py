"""A module as the program sees it: the root module that calls it, and state, lock and plans of a node."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from itertools import zip_longest
from pathlib import Path
from threading import Event
from typing import IO, Any

from trainctl.base.filesystem.files import make_directory, write_atomic
from trainctl.base.json import digest
from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.system.processes import Process, describe_process, is_dead
from trainctl.errors import NodeError, NodeUnreachable, StalePlan, TrainctlError, UserInterrupt
from trainctl.plugin_api.machines import MachinePlan, ProjectAccess, ProviderRecords
from trainctl.plugin_api.provider import Node
from trainctl_terraform.program import find_program, memory_file, run_outliving, run_program, serve
from trainctl_terraform.settings import (
    OWN_INPUTS,
    TerraformNode,
    TerraformSettings,
    output_facts,
    read_output,
)

_LOCK_FILE = ".terraform.lock.hcl"
_UNSAVED = "errored.tfstate"
"""File that the program leaves in its directory if it can't save a state."""
_BACKEND = compile_lazily(
    r'(?m)^\s*(?:backend\s+"(\w+)"|cloud)\s*\{((?:[^{}"]|"(?:[^"\\]|\\.)*"|\{[^{}]*\})*\})?'
)


def root_module(settings: TerraformSettings, source: str) -> dict[str, Any]:
    """Return the root module that calls a module, as JSON, but for its backend: the same for all nodes of a cluster.

    Secrets are ephemeral variables, which the program writes neither to plans nor to states.
    """
    secret = {"type": "string", "sensitive": True, "ephemeral": True}
    names = [*OWN_INPUTS, *settings.variables, *settings.secrets]
    names += [] if settings.max_lifetime is None else ["max_lifetime"]
    version = {"version": settings.version} if settings.version else {}
    inputs = {name: f"${{var.{name}}}" for name in names}
    return {
        "variable": {name: secret if name in settings.secrets else {} for name in names},
        "module": {"node": {**inputs, "source": source, **version}},
        "output": {"node": {"value": "${module.node.node}"}},
    }


class TerraformModule:
    """A module with its settings, whose providers are installed; NodeError if that fails.

    ``directory`` has what init installs; ``digest`` covers the files of the module and of those that it calls.
    """

    def __init__(self, settings: TerraformSettings, project: ProjectAccess, base: Path) -> None:
        self.settings, self.program = settings, find_program(settings.program)
        place = (project.directory / settings.module).resolve()
        self.backend = declared_backend(place) if settings.is_local else ""
        name = f"{settings.module} {settings.version} {self.program} {place} {self.backend}"
        self.directory = base.resolve() / "modules" / hashlib.sha256(name.encode()).hexdigest()[:24]
        # Relative paths are used in place; the directories of nodes are as deep as this one.
        relative = os.path.relpath(place, self.directory)
        root = root_module(settings, relative if settings.is_local else settings.module)
        self.files = {"main.tf.json": json.dumps(root).encode()}
        secrets = settings.secrets.items()
        self.environment = {
            f"TF_VAR_{name}": project.secret(each["secret"]) for name, each in secrets
        }
        self.environment["TF_DATA_DIR"] = str(self.directory / ".terraform")
        init = ["init"]
        if settings.is_local and (place / _LOCK_FILE).exists():
            self.files[_LOCK_FILE] = (place / _LOCK_FILE).read_bytes()
            init.append("-lockfile=readonly")
        make_directory(self.directory)
        with (base / "init.lock").open("w") as lock:  # plugin caches need one init at a time
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not settings.is_local:
                self._run("get")
                self.backend = declared_backend(self._places()["node"])
            block = self.backend or 'backend "http" {}'
            self.files["backend.tf"] = f"terraform {{\n{block}\n}}\n".encode()
            self._run(*init)
            if (self.directory / _LOCK_FILE).exists():
                self.files[_LOCK_FILE] = (self.directory / _LOCK_FILE).read_bytes()
        self.digest = _digest_files(self._places(), self.files)

    def _places(self) -> dict[str, Path]:
        """Return the directories of the modules that are installed."""
        installed = json.loads((self.directory / ".terraform/modules/modules.json").read_text())
        places = {each["Key"]: self.directory / each["Dir"] for each in installed["Modules"]}
        return {key: place for key, place in places.items() if key}  # without the root module

    def _run(self, *words: str) -> None:
        for name, data in self.files.items():
            write_atomic(self.directory / name, data)
        with serve(lambda *_: b"", []) as backend:
            environment = {**self.environment, **backend}
            run_program([self.program, *words], self.directory, environment, Event())


def declared_backend(module: Path) -> str:
    """Return the block of the backend that a module declares; NodeError if it can't be used."""
    blocks = [_BACKEND.search(path.read_text(errors="replace")) for path in module.glob("*.tf")]
    declared = {each[1] or "cloud": each[0] if each[2] else "" for each in blocks if each}
    for path in module.glob("*.tf.json"):
        with suppress(ValueError, AttributeError):  # the program reports what is invalid
            settings = str(json.loads(path.read_bytes()).get("terraform"))
            if "'backend'" in settings or "'cloud'" in settings:
                declared["of JSON"] = ""
    for name, block in declared.items():
        if name in ("local", "cloud") or not block:
            raise NodeError(
                f"{module} declares a backend that can't be used: {name}",
                "Remove it, as trainctl keeps the states of nodes, or declare another as a plain block of a .tf file.",
            )
    return "".join(declared.values())


def _digest_files(places: Mapping[str, Path], own: Mapping[str, bytes]) -> str:
    """Return the digest of the modules that are installed, and of the lock file."""
    found = hashlib.sha256(own.get(_LOCK_FILE, b""))
    for key, place in sorted(places.items()):
        for path in sorted(place.rglob("*")):
            parts = path.relative_to(place).parts
            made = {".terraform", ".git"} & {*parts} or ".tfstate" in path.name
            if path.is_file() and not made:
                found.update(f"{key}/{'/'.join(parts)}\0{path.stat().st_size}\0".encode())
                found.update(path.read_bytes())
    return found.hexdigest()


@dataclass(frozen=True, slots=True)
class NodeModule:
    """A module for one node, with the records of the project."""

    module: TerraformModule
    records: ProviderRecords
    node: TerraformNode

    @property
    def directory(self) -> Path:
        """The working directory of the node."""
        return self.module.directory.parents[1] / "nodes" / self.node.id

    def state(self) -> bytes:
        """Return the state as the program wrote it; empty without one."""
        if self.module.backend:
            return self.run(["state", "pull"], Event())
        return self.records.get(self.node.path("state")) or b""

    def has_resources(self) -> bool:
        """Whether the state has what the module created."""
        found = json.loads(self.state() or b"{}").get("resources") or ()
        return any(each.get("mode") == "managed" for each in found)

    def output(self) -> dict[str, Any]:
        """Return what the module has returned as ``node``; NodeError if that isn't a machine."""
        outputs = json.loads(self.state() or b"{}").get("outputs") or {}
        return read_output((outputs.get("node") or {}).get("value"), self.node.name)

    def save_output(self) -> None:
        """Record what the module has returned, if it is a machine."""
        node = self.node.path("node")
        with suppress(NodeError):
            output, record = self.output(), json.loads(self.records.get(node) or b"{}")
            self.records.put(node, json.dumps({**record, "output": output}).encode())

    def delete_state(self) -> None:
        """Delete the state, once all resources are deleted."""
        if self.module.backend:
            with suppress(NodeError):  # it doesn't exist
                self.run(["workspace", "delete", self.node.id], Event())
        self.records.delete([self.node.path("state")])

    def plan(self, *options: str) -> MachinePlan:
        """Plan; takes no lock."""
        state = self.state()
        with memory_file() as file:
            path = f"/dev/fd/{file.fileno()}"
            self.run(["plan", "-lock=false", f"-out={path}", *options], Event(), file)
            document = json.loads(self.run(["show", "-json", path], Event(), file))
            file.seek(0)
            return self.review(document, file.read(), state)

    def review(self, document: Mapping[str, Any], file: bytes, state: bytes) -> MachinePlan:
        """Reduce a plan to what a review needs, and keep its file to be applied to this state as it is.

        The node has ``gone`` in ``details``: whether its machine has been deleted elsewhere.
        """
        planner = f"{Path(self.module.program).name} {document['terraform_version']}"
        changes = tuple(_changes(document, self.node.inputs))
        kept = {"plan": base64.b64encode(file).decode(), "made_for": self._made_for(state)}
        output = (document.get("output_changes") or {}).get("node", {}).get("after") or {}
        drift = document.get("resource_drift") or ()
        # An address that isn't known belongs to a machine that is to be changed, or was deleted.
        deleted = any("delete" in each["change"]["actions"] for each in drift)
        gone = not output["address"] if "address" in output else deleted
        facts = output_facts(self.module.settings, output)
        planned = Node(self.node.cluster, self.node.name, details={"gone": gone}, **facts)
        covers, kept_ = digest([planner, self.module.digest, changes]), json.dumps(kept)
        return MachinePlan(planned.name, self.node.key, planner, changes, covers, kept_, planned)

    def _made_for(self, state: bytes) -> list[str]:
        """Return what an applied plan needs as it was: the module and the login key, and the state."""
        module = f"{self.module.digest} {self.node.inputs['public_key']}"
        return [module, hashlib.sha256(state).hexdigest()]

    def apply(self, cancelled: Event, plan: bytes = b"", *, destroy: bool = False) -> None:
        """Apply a plan, else what the module says, also if this process is killed; NodeError with what failed."""
        name = f"{Path(self.module.program).name} {'destroy' if destroy else 'apply'}"
        run_outliving(_apply, self, plan, destroy, cancelled=cancelled, name=name)

    def run(
        self,
        words: Sequence[str],
        cancelled: Event,
        plan: IO[bytes] | None = None,
        started: Callable[[int], None] | None = None,
    ) -> bytes:
        """Run a command in the working directory of the node."""
        settings = self.module.settings
        values = {**settings.variables, **self.node.inputs}
        if settings.max_lifetime is not None:
            values["max_lifetime"] = int(settings.max_lifetime)
        make_directory(self.directory)
        own = {"terraform.tfvars.json": json.dumps(values).encode()}
        for name, data in {**self.module.files, **own}.items():
            write_atomic(self.directory / name, data)
        command, failures = [self.module.program, *words], list[TrainctlError]()
        workspace = "default" if words[0] == "workspace" else self.node.id
        declared = nullcontext({"TF_WORKSPACE": workspace})
        served = serve(self._answer, failures)
        with declared if self.module.backend else served as backend:
            environment = {**self.module.environment, **backend}
            try:
                return run_program(
                    command, self.directory, environment, cancelled, plan=plan, started=started
                )
            except TrainctlError as error:
                raise (failures or [error])[0] from None

    def _answer(self, method: str, data: bytes) -> bytes:
        if method == "GET":
            return self.records.get(self.node.path("state")) or b""
        self.records.put(self.node.path("state"), data)
        return b""

    def lock(self, *processes: Process) -> None:
        """Record the processes that change the node; NodeError if others do, or have deleted it."""
        lock, held = self.node.path("lock"), [each._asdict() for each in processes]
        document = json.dumps({"host": os.uname().nodename, "processes": held}).encode()
        if not self.records.put_if_absent(lock, document):
            raise NodeError("another command changes this node", "Wait until it has ended.")
        if self.records.get(self.node.path("node")) is None:
            self.records.delete([lock])
            raise NodeError("another command has deleted this node")

    def recover(self, cancelled: Event) -> None:
        """Wait for a program that a killed command left behind, and save a state that it could not send."""
        lock = self.node.path("lock")
        while (held := self.records.get(lock)) is not None:
            holder = json.loads(held)
            ended = {is_dead(Process(**each)) for each in holder["processes"]}
            if ended == {True}:
                break
            if False not in ended:
                raise NodeUnreachable(
                    f"{Path(self.module.program).name} changes this node on {holder['host']}",
                    f"Wait until it has ended. If that machine is lost: look for what has the key {self.node.inputs['key']}, then delete {lock} next to the state.",
                    code="terraform-interrupted",
                )
            if cancelled.wait(0.5):
                raise UserInterrupt("stopped while waiting for another command")
        unsaved = self.directory / _UNSAVED
        if unsaved.exists():
            new, old = json.loads(unsaved.read_bytes()), json.loads(self.state() or b"{}")
            if new.get("serial", 0) > old.get("serial", -1):
                if self.module.backend:
                    self.run(["state", "push", _UNSAVED], cancelled)
                else:
                    self._answer("POST", unsaved.read_bytes())
            unsaved.unlink()
        if held:
            self.save_output()
            self.records.delete([lock])

    def apply_reviewed(self, reviewed: MachinePlan, cancelled: Event) -> None:
        """Apply a reviewed plan as it is, or finish it after an interruption; StalePlan if something else would be done."""
        kept = json.loads(reviewed.file)
        now = self._made_for(self.state())
        if kept["made_for"][0] != now[0]:
            raise StalePlan(
                f"the plan of {reviewed.node} can't be applied: the module has changed since, or another computer has its login key",
                "Plan again.",
            )
        if kept["made_for"] != now:
            rest = self.plan()
            kept = json.loads(rest.file)
            more = [each["address"] for each in rest.changes if each not in reviewed.changes]
            if more:
                raise StalePlan(
                    f"the state of {reviewed.node} has changed since the plan was made",
                    f"To finish it, {', '.join(more)} would change otherwise. Plan again.",
                )
        self.apply(cancelled, base64.b64decode(kept["plan"]))


def _apply(module: NodeModule, plan: bytes, destroy: bool, cancelled: Event) -> None:
    with memory_file(plan) as file, ExitStack() as ended:

        def started(pid: int) -> None:
            module.lock(describe_process(), describe_process(pid))
            ended.callback(module.records.delete, [module.node.path("lock")])

        words = ["apply", "-lock=false", *(["-destroy"] if destroy else [])]
        words.append(f"/dev/fd/{file.fileno()}" if plan else "-auto-approve")
        module.run(words, cancelled, file, started)
        module.save_output()


def _changes(document: Mapping[str, Any], inputs: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield what changes, with the values that are known and neither sensitive nor those of before.

    Names of inputs stand for their values, so that nodes have equal changes.
    """
    for item in document.get("resource_changes") or ():
        change = item["change"]
        if change["actions"] in (["no-op"], ["read"]):
            continue
        before, after = (
            _without_sensitive(change.get(when) or {}, change.get(f"{when}_sensitive"))
            for when in ("before", "after")
        )
        known = {
            name: value
            for name, value in sorted(after.items())
            if value not in (None, [], {}, before.get(name))
        }
        text = json.dumps(known)
        for name, value in inputs.items():
            text = text.replace(json.dumps(value)[1:-1], f"<{name}>")
        yield {
            "address": item["address"],
            "actions": change["actions"],
            "reason": item.get("action_reason") or "",
            "values": json.loads(text),
            "replace_paths": [".".join(map(str, at)) for at in change.get("replace_paths") or ()],
        }


def _without_sensitive(value: Any, sensitive: Any) -> Any:
    if sensitive is True:
        return "(sensitive value)"
    if isinstance(value, dict):
        hidden = sensitive or {}
        return {name: _without_sensitive(each, hidden.get(name)) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_sensitive(*each) for each in zip_longest(value, sensitive or ())]
    return value
