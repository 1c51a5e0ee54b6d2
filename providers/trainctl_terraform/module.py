"""A module as the program sees it: the root module that calls it, working directories, plans of a node."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from threading import Event
from typing import IO, Any

from trainctl.base.filesystem.files import make_directory, write_atomic
from trainctl.base.json import digest
from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.system.processes import describe_process
from trainctl.errors import NodeUnreachable, StalePlan, TrainctlError, UserInterrupt
from trainctl.plugin_api.machines import MachinePlan
from trainctl.plugin_api.project import ProjectAccess
from trainctl.plugin_api.provider import Node
from trainctl_terraform.program import find_program, memory_file, run_outliving, run_program
from trainctl_terraform.settings import OWN_INPUTS, TerraformSettings, node_facts
from trainctl_terraform.states import NodeState, serve

LOCK_FILE = ".terraform.lock.hcl"
_UNSAVED = "errored.tfstate"
"""File that the program leaves in its directory if it can't send a state."""


def root_module(settings: TerraformSettings, source: str) -> dict[str, Any]:
    """Return the root module that calls a module, as JSON: the same for all nodes of a cluster.

    Secrets are ephemeral variables, which the program writes neither to plans nor to states.
    """
    secret = {"type": "string", "sensitive": True, "ephemeral": True}
    names = [*OWN_INPUTS, *settings.variables, *settings.secrets]
    names += [] if settings.max_lifetime is None else ["max_lifetime"]
    version = {"version": settings.version} if settings.version else {}
    inputs = {name: f"${{var.{name}}}" for name in names}
    return {
        "terraform": {"backend": {"http": {}}},
        "variable": {name: secret if name in settings.secrets else {} for name in names},
        "module": {"node": {**inputs, "source": source, **version}},
        "output": {"node": {"value": "${module.node.node}"}},
    }


class TerraformModule:
    """A module with its settings, whose providers are installed; NodeError if that fails.

    ``directory`` has what init installs; ``digest`` covers the files of the module and of those that it calls.
    """

    def __init__(
        self, settings: TerraformSettings, project: ProjectAccess, base: Path, state: NodeState
    ) -> None:
        self.settings, self.program = settings, find_program(settings.program)
        place = (project.directory / settings.module).resolve()
        name = f"{settings.module} {settings.version} {self.program} {place}"
        self.directory = base.resolve() / "modules" / hashlib.sha256(name.encode()).hexdigest()[:24]
        # Relative paths are used in place; the directories of nodes are as deep as this one.
        relative = os.path.relpath(place, self.directory)
        root = root_module(settings, relative if settings.is_local else settings.module)
        self.root = json.dumps(root).encode()
        secrets = settings.secrets.items()
        self.environment = {f"TF_VAR_{name}": project.secret(each) for name, each in secrets}
        self.environment["TF_DATA_DIR"] = str(self.directory / ".terraform")
        make_directory(self.directory)
        with (base / "init.lock").open("w") as lock:  # plugin caches need one init at a time
            fcntl.flock(lock, fcntl.LOCK_EX)
            write_atomic(self.directory / "main.tf.json", self.root)
            command = [self.program, "init", "-no-color"]
            if settings.is_local and (place / LOCK_FILE).exists():
                shutil.copyfile(place / LOCK_FILE, self.directory / LOCK_FILE)
                command.append("-lockfile=readonly")
            with serve(state) as backend:
                run_program(command, self.directory, {**self.environment, **backend}, Event())
            self.digest = _digest_files(self.directory)


def _digest_files(directory: Path) -> str:
    """Return the digest of the modules that are installed in a directory, and of its lock file."""
    installed = json.loads((directory / ".terraform/modules/modules.json").read_text())
    found = hashlib.sha256()
    places = {each["Key"]: directory / each["Dir"] for each in installed["Modules"] if each["Key"]}
    for key, place in sorted(places.items()):
        for path in sorted(place.rglob("*")):
            parts = path.relative_to(place).parts
            own = {".terraform", ".git"} & {*parts} or ".tfstate" in path.name
            if path.is_file() and not own:
                found.update(f"{key}/{'/'.join(parts)}\0{path.stat().st_size}\0".encode())
                found.update(path.read_bytes())
    if (directory / LOCK_FILE).exists():
        found.update((directory / LOCK_FILE).read_bytes())
    return found.hexdigest()


class ProgramPlan(NamedTuple):
    """A plan as the program writes it, and as JSON, with the settings and the state that it was made for."""

    settings: TerraformSettings
    state: bytes
    file: bytes
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NodeModule:
    """A module for one node: ``id`` names its records, ``inputs`` are the values of ``OWN_INPUTS``."""

    module: TerraformModule
    id: str
    state: NodeState
    inputs: Mapping[str, str]

    @property
    def directory(self) -> Path:
        """The working directory of the node."""
        return self.module.directory.parents[1] / "nodes" / self.id

    def plan(self, *options: str) -> ProgramPlan:
        """Plan; takes no lock."""
        state = self.state.read()
        with memory_file() as file:
            path = f"/dev/fd/{file.fileno()}"
            self.run(["plan", "-lock=false", f"-out={path}", *options], Event(), file)
            document = self.run(["show", "-json", path], Event(), file)
            file.seek(0)
            return ProgramPlan(self.module.settings, state, file.read(), json.loads(document))

    def apply(self, cancelled: Event, plan: bytes = b"", *, destroy: bool = False) -> None:
        """Apply a plan, else what the module says, also if this process is killed; NodeError with what failed."""
        self.recover(cancelled)
        name = f"{Path(self.module.program).name} {'destroy' if destroy else 'apply'}"
        run_outliving(_apply, self, plan, destroy, cancelled=cancelled, name=name)

    def run(self, words: Sequence[str], cancelled: Event, plan: IO[bytes] | None = None) -> bytes:
        """Run a command in the working directory of the node."""
        make_directory(self.directory)
        write_atomic(self.directory / "main.tf.json", self.module.root)
        settings = self.module.settings
        values = {**settings.variables, **self.inputs}
        if settings.max_lifetime is not None:
            values["max_lifetime"] = int(settings.max_lifetime)
        write_atomic(self.directory / "terraform.tfvars.json", json.dumps(values).encode())
        if (self.module.directory / LOCK_FILE).exists():
            shutil.copyfile(self.module.directory / LOCK_FILE, self.directory / LOCK_FILE)

        def started(pid: int) -> None:
            self.state.processes = [describe_process(), describe_process(pid)]

        command = [self.module.program, words[0], "-no-color", *words[1:]]
        with serve(self.state) as backend:
            environment = {**self.module.environment, **backend}
            try:
                return run_program(
                    command, self.directory, environment, cancelled, plan=plan, started=started
                )
            except TrainctlError as error:
                raise self.state.failure or error from None

    def recover(self, cancelled: Event) -> None:
        """Wait for a program that a killed command left behind, and save a state that it could not send."""
        while (holder := self.state.holder()) is not None and not holder[1]:
            if holder[1] is None:
                raise NodeUnreachable(
                    f"{Path(self.module.program).name} changes this node on {holder[0]}",
                    f"Wait until it has ended. If that machine is lost: look for what has the key {self.inputs['key']}, then delete {self.state.lock_key} next to the state.",
                    code="terraform-interrupted",
                )
            if cancelled.wait(0.5):
                raise UserInterrupt("stopped while waiting for another command")
        unsaved = self.directory / _UNSAVED
        if unsaved.exists():
            self.state.restore(unsaved.read_bytes())
            unsaved.unlink()
        if holder:
            self.state.unlock()


def _apply(module: NodeModule, plan: bytes, destroy: bool, cancelled: Event) -> None:
    with memory_file(plan) as file:
        options = ["-destroy"] if destroy else []
        options.append(f"/dev/fd/{file.fileno()}" if plan else "-auto-approve")
        module.run(["apply", *options], cancelled, file)


def review_plan(
    module: NodeModule, plan: ProgramPlan, cluster: str, name: str, key: str
) -> MachinePlan:
    """Reduce a plan to what a review needs, and keep it to be applied as it is."""
    planner = f"{Path(module.module.program).name} {plan.document['terraform_version']}"
    changes = tuple(_changes(plan.document, module.inputs))
    file = base64.b64encode(plan.file).decode()
    kept = {"plan": file, "made_for": _made_for(module), "state": _hex_digest(plan.state)}
    output = plan.document.get("output_changes", {}).get("node", {}).get("after")  # known members
    planned = Node(cluster, name, **node_facts(module.module.settings, output or {}))
    covers = digest([planner, module.module.digest, changes])
    return MachinePlan(name, key, planner, changes, covers, json.dumps(kept), planned)


def apply_reviewed(module: NodeModule, reviewed: MachinePlan, cancelled: Event) -> None:
    """Apply a reviewed plan as it is, or finish it after an interruption; StalePlan if something else would be done."""
    kept = json.loads(reviewed.file)
    if kept["made_for"] != _made_for(module):
        raise StalePlan(
            f"the plan of {reviewed.node} can't be applied: the module has changed since, or another computer has its login key",
            "Plan again.",
        )
    module.recover(cancelled)
    file = base64.b64decode(kept["plan"])
    if kept["state"] != _hex_digest(module.state.read()):
        plan = module.plan()
        file = plan.file
        allowed = {change["address"] for change in reviewed.changes}
        more = [each["address"] for each in _changes(plan.document, module.inputs)]
        if not allowed.issuperset(more):
            raise StalePlan(
                f"the state of {reviewed.node} has changed since the plan was made",
                f"To finish it, {', '.join({*more} - allowed)} would change, too. Plan again.",
            )
    module.apply(cancelled, file)


def _made_for(module: NodeModule) -> str:
    return f"{module.module.digest} {module.inputs['public_key']}"


def _hex_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _changes(document: Mapping[str, Any], inputs: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield what changes, with the values that are known and neither sensitive nor those of before."""
    for item in document.get("resource_changes") or ():
        change = item["change"]
        if change["actions"] not in (["no-op"], ["read"]):
            before, after = (
                _shown(change.get(when), change.get(f"{when}_sensitive"), inputs) or {}
                for when in ("before", "after")
            )
            paths = change.get("replace_paths") or ()
            yield {
                "address": item["address"],
                "actions": change["actions"],
                "reason": item.get("action_reason") or "",
                "values": {
                    name: value
                    for name, value in sorted(after.items())
                    if value not in (None, [], {}, before.get(name))
                },
                "replace_paths": [".".join(map(str, path)) for path in paths],
            }


def _shown(value: Any, sensitive: Any, inputs: Mapping[str, str]) -> Any:
    """Return a value without its sensitive parts, and with the names of inputs for their values."""
    if sensitive is True:
        return "(sensitive value)"
    if isinstance(value, dict):
        hidden = sensitive if isinstance(sensitive, dict) else {}
        return {name: _shown(each, hidden.get(name), inputs) for name, each in value.items()}
    if isinstance(value, list):
        hides = sensitive if isinstance(sensitive, list) else []
        return [_shown(*pair, inputs) for pair in zip_longest(value, hides[: len(value)])]
    if isinstance(value, str):
        for name, text in inputs.items():
            value = value.replace(text, f"<{name}>")
    return value
