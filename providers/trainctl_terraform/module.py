"""A module as the program sees it: the root module that calls it, and state, lock and plans of a node."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from threading import Event
from typing import Any

from trainctl.base.filesystem.files import make_directory, write_atomic
from trainctl.base.json import digest
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.system.processes import Process, is_dead, process_record
from trainctl.errors import NodeError, NodeUnreachable, StalePlan, UserInterrupt
from trainctl.plugin_api.machines import MachinePlan, ProjectAccess, ProviderRecords
from trainctl.plugin_api.provider import Node
from trainctl_ssh.keys import data_directory
from trainctl_terraform.program import find_program, memory_file, run_program
from trainctl_terraform.settings import (
    OWN_INPUTS,
    PROVIDER,
    TerraformNode,
    TerraformSettings,
    output_facts,
    read_output,
)

_LOCK_FILE = ".terraform.lock.hcl"
_BACKEND = compile_lazily(r'(?ms)^([ \t]*)backend\s+"(?!local")\w+"\s*\{(?:[^{}\n]*\}|.*?^\1\})')


def root_module(settings: TerraformSettings, source: str) -> dict[str, Any]:
    """Return the root module that calls a module, as JSON, but for its backend: the same for all nodes of a cluster.

    Secrets are ephemeral variables, which the program writes neither to plans nor to states.
    """
    secret = {"type": "string", "sensitive": True, "ephemeral": True}
    names = [*OWN_INPUTS, *settings.variables, *settings.secrets]
    version = {"version": settings.version} if settings.version else {}
    inputs = {name: f"${{var.{name}}}" for name in names}
    return {
        "variable": {name: secret if name in settings.secrets else {} for name in names},
        "module": {"node": {**inputs, "source": source, **version}},
        "output": {"node": {"value": "${module.node.node}"}},
    }


class TerraformModule:
    """The module of a node, with its settings, whose providers are installed; NodeError if that fails.

    ``directory`` has what init installs; ``digest`` covers the files of the module and of those that it calls. ``backend``
    is the block that the node has, by default that which the module declares.
    """

    def __init__(self, node: TerraformNode, project: ProjectAccess) -> None:
        self.settings = settings = TerraformSettings.read(node.settings)
        project.require_module(settings.module)
        self.program, place = find_program(settings.program), project.directory / settings.module
        declares = node.backend is None and settings.is_local
        self.backend = declared_backend(place) if declares else node.backend or ""
        name = f"{settings.module} {settings.version} {self.program} {place} {self.backend}"
        base = data_directory(PROVIDER).resolve()
        self.directory = base / "modules" / hashlib.sha256(name.encode()).hexdigest()[:24]
        # Relative paths are used in place; the directories of nodes are as deep as this one.
        relative = os.path.relpath(place.resolve(), self.directory)
        root = root_module(settings, relative if settings.is_local else settings.module)
        backend = f"terraform {{\n{self.backend}\n}}\n"
        lines = json.dumps(root, indent=2).encode()  # errors of the program show a line
        self.files = {"main.tf.json": lines, "backend.tf": backend.encode()}
        self.environment = {"TF_DATA_DIR": str(self.directory / ".terraform")}
        for name, each in settings.secrets.items():
            self.environment[f"TF_VAR_{name}"] = project.secret(each["secret"])
        init = ["init"]
        if settings.is_local and (place / _LOCK_FILE).exists():
            self.files[_LOCK_FILE] = (place / _LOCK_FILE).read_bytes()
            init.append("-lockfile=readonly")
        make_directory(base)
        with (base / "init.lock").open("w") as lock:  # plugin caches need one init at a time
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.run(init, self.directory, {})
            if (self.directory / _LOCK_FILE).exists():
                self.files[_LOCK_FILE] = (self.directory / _LOCK_FILE).read_bytes()
        self.digest = self._digest_files()

    def _digest_files(self) -> str:
        """Return the digest of the modules that are installed, and of the lock file."""
        found = hashlib.sha256(self.files.get(_LOCK_FILE, b""))
        installed = json.loads((self.directory / ".terraform/modules/modules.json").read_text())
        _, *modules = sorted(installed["Modules"], key=itemgetter("Key"))  # but for the root module
        for module in modules:
            place = self.directory / module["Dir"]
            for path in sorted(place.rglob("*")):
                parts = path.relative_to(place).parts
                made = {".terraform", ".git"} & {*parts} or ".tfstate" in path.name
                if path.is_file() and not made:
                    name = f"{module['Key']}/{'/'.join(parts)}\0{path.stat().st_size}\0"
                    found.update(name.encode() + path.read_bytes())
        return found.hexdigest()

    def run(
        self, words: Sequence[str], directory: Path, own: Mapping[str, str], *rest: Any, **more: Any
    ) -> bytes:
        """Run a command in a directory, to which the root module is written, with environment variables."""
        make_directory(directory)
        for name, data in self.files.items():
            write_atomic(directory / name, data)
        variables = {**self.environment, **own}
        return run_program([str(self.program), *words], directory, variables, *rest, **more)


def declared_backend(module: Path) -> str:
    """Return the block of the backend that a module declares, but for ``local``; empty without one."""
    texts = (path.read_text(errors="replace") for path in sorted(module.glob("*.tf")))
    return next((found[0] for found in map(_BACKEND.search, texts) if found), "")


class NodeModule:
    """A module for one node, with the records of the project."""

    def __init__(
        self, module: TerraformModule, records: ProviderRecords, node: TerraformNode
    ) -> None:
        self.module, self.records, self.node = module, records, node
        self.directory = module.directory.parents[1] / "nodes" / node.id
        # What the program writes, or what it can't save in the backend of the module.
        name = "errored" if module.backend else "terraform"
        self.written = self.directory / f"{name}.tfstate"

    def state(self) -> bytes:
        """Return the saved state; empty without one."""
        if self.module.backend:
            return self.run(["state", "pull"])
        return self.records.get(self.node.path("state")) or b""

    @cached_property
    def saved_serial(self) -> int:
        """Serial number of the saved state."""
        return int(json.loads(self.state() or b"{}").get("serial", -1))

    def has_resources(self) -> bool:
        """Whether the state has what the module created."""
        found = json.loads(self.state() or b"{}").get("resources") or ()
        return any(each.get("mode") == "managed" for each in found)

    def output(self) -> dict[str, Any]:
        """Return what the module has returned as ``node``; NodeError if that isn't a machine."""
        outputs = json.loads(self.state() or b"{}").get("outputs") or {}
        return read_output((outputs.get("node") or {}).get("value"), self.node.name)

    def plan(self, *options: str) -> MachinePlan:
        """Plan; takes no lock."""
        state = self.state()
        with memory_file(state) as saved, memory_file() as file:
            states = [] if self.module.backend else [f"-state=/dev/fd/{saved.fileno()}"]
            path = f"/dev/fd/{file.fileno()}"
            words = ["plan", "-lock=false", *states, f"-out={path}", *options]
            self.run(words, files=(saved, file))
            document = json.loads(self.run(["show", "-json", path], files=(file,)))
            file.seek(0)
            return self.review(document, file.read(), state)

    def review(self, document: Mapping[str, Any], file: bytes, state: bytes) -> MachinePlan:
        """Reduce a plan to what a review needs, and keep its file to be applied to this state as it is.

        The node has ``gone`` in ``details``: whether its machine has been deleted elsewhere.
        """
        planner = f"{self.module.program.name} {document['terraform_version']}"
        changes = tuple(_changes(document, self.node.inputs))
        kept = {"plan": base64.b64encode(file).decode(), "made_for": self._made_for(state)}
        output = (document.get("output_changes") or {}).get("node", {}).get("after") or {}
        drift = document.get("resource_drift") or ()
        # An address that isn't known belongs to a machine that is to be changed, or was deleted.
        deleted = any("delete" in each["change"]["actions"] for each in drift)
        gone = not output["address"] if "address" in output else deleted
        facts = {"key": self.node.key, **output_facts(self.module.settings, output)}
        node = Node(self.node.cluster, self.node.name, details={"gone": gone}, **facts)
        covered = digest([planner, self.module.digest, changes])
        return MachinePlan(node, planner, changes, covered, json.dumps(kept))

    def _made_for(self, state: bytes) -> list[str]:
        """Return what an applied plan needs as it was: the module and the login key, and the state."""
        module = f"{self.module.digest} {self.node.inputs['public_key']}"
        return [module, hashlib.sha256(state).hexdigest()]

    def apply(self, cancelled: Event, reviewed: MachinePlan | None, *options: str) -> None:
        """Apply a reviewed plan, else what the module says; NodeError with what failed."""
        plan = self.program_plan(reviewed) if reviewed else b""
        with memory_file(plan) as file, ExitStack() as ended:

            def started(pid: int) -> None:
                self.lock(pid)
                ended.callback(self.release)
                if not self.module.backend:
                    write_atomic(self.written, self.state())

            words = ["apply", "-lock=false", "-backup=-", *options]
            words.append(f"/dev/fd/{file.fileno()}" if plan else "-auto-approve")
            self.run(words, cancelled, files=(file,), started=started, poll=self.save)

    def run(self, words: Sequence[str], cancelled: Event | None = None, **more: Any) -> bytes:
        """Run a command in the working directory of the node."""
        values = {**self.module.settings.variables, **self.node.inputs}
        make_directory(self.directory)
        write_atomic(self.directory / "terraform.tfvars.json", json.dumps(values).encode())
        own = {"TF_WORKSPACE": self.node.id} if self.module.backend else {}
        return self.module.run(words, self.directory, own, cancelled, **more)

    def lock(self, pid: int) -> None:
        """Record that a program changes the node; NodeError if another one does."""
        holder = {"host": os.uname().nodename, "process": process_record(pid)}
        if not self.records.put_if_absent(self.node.path("lock"), json.dumps(holder).encode()):
            raise NodeError("another command changes this node", "Wait until it has ended.")

    def save(self) -> None:
        """Save the state that the program has written, unless a newer one is saved."""
        with suppress(FileNotFoundError, ValueError):  # the program may be writing it
            data = self.written.read_bytes()
            serial = json.loads(data)["serial"]
            if serial > self.saved_serial:
                if self.module.backend:
                    self.run(["state", "push", self.written.name])
                else:
                    self.records.put(self.node.path("state"), data)
                self.saved_serial = serial

    def release(self) -> None:
        """Save what an ended program has written and returned, and release its lock."""
        self.save()
        node = self.node.path("node")
        with suppress(NodeError):  # it isn't a machine
            output, record = self.output(), json.loads(self.records.get(node) or b"{}")
            self.records.put(node, json.dumps({**record, "output": output}).encode())
        self.written.unlink(missing_ok=True)
        self.records.delete([self.node.path("lock")])

    def recover(self, cancelled: Event) -> None:
        """Wait for a program that a killed command left behind, and save what it has written."""
        lock = self.node.path("lock")
        while (held := self.records.get(lock)) is not None:
            holder = json.loads(held)
            ended = is_dead(Process(**holder["process"]))
            if ended:
                break
            if ended is None:
                raise NodeUnreachable(
                    f"{self.module.program.name} changes this node on {holder['host']}",
                    f"Wait until it has ended, and apply there. If that machine is lost: look for what has the key {self.node.id}, then delete {lock} next to the state.",
                    code="terraform-interrupted",
                )
            if cancelled.wait(0.5):
                raise UserInterrupt("stopped while waiting for another command")
        if held or self.written.exists():
            self.release()

    def program_plan(self, reviewed: MachinePlan) -> bytes:
        """Return a reviewed plan as it is, or its rest after an interruption; StalePlan if something else would be done."""
        kept = json.loads(reviewed.file)
        now = self._made_for(self.state())
        if kept["made_for"][0] != now[0]:
            raise StalePlan(
                f"the plan of {self.node.name} can't be applied: the module has changed since, or another computer has its login key",
                "Plan again.",
            )
        if kept["made_for"] != now:
            rest = self.plan()
            kept = json.loads(rest.file)
            more = [each["address"] for each in rest.changes if each not in reviewed.changes]
            if more:
                raise StalePlan(
                    f"the state of {self.node.name} has changed since the plan was made",
                    f"To finish it, {', '.join(more)} would change otherwise. Plan again.",
                )
        return base64.b64decode(kept["plan"])


def _changes(document: Mapping[str, Any], inputs: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield what changes, with the values that are known and neither sensitive nor those of before.

    Names of inputs stand for their values, so that nodes have equal changes.
    """
    for item in document.get("resource_changes") or ():
        change = item["change"]
        if change["actions"] in (["no-op"], ["read"]):
            continue
        before, after = _values(change, "before"), _values(change, "after")
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


def _values(change: Mapping[str, Any], when: str) -> dict[str, Any]:
    """Return the attributes of a resource; one that has a sensitive part is hidden."""
    marks = change.get(f"{when}_sensitive") or {}
    values = dict(change.get(when) or {})
    for name in values:
        if "true" in json.dumps(marks is True or marks.get(name)):
            values[name] = "(sensitive value)"
    return values
