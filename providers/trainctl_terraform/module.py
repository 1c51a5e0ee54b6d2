"""A module as the program sees it: the root module that calls it, working directories, plans of one node."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import Any

from trainctl.base.filesystem.files import make_directory, write_atomic
from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.system.processes import describe_process
from trainctl.errors import NodeError, NodeUnreachable, UserInterrupt
from trainctl.plugin_api.project import ProjectAccess
from trainctl_terraform.program import TerraformProgram, memory_file, read_memory
from trainctl_terraform.settings import OWN_INPUTS, TerraformSettings
from trainctl_terraform.state_server import NodeStateDocument, StateServer

LOCK_FILE = ".terraform.lock.hcl"
_UNSAVED = "errored.tfstate"
"""File that the program leaves in its directory if it can't send a state."""
_SECRET = "secret_"  # noqa: S105 (a prefix of names)


def root_module(settings: TerraformSettings, source: str) -> dict[str, Any]:
    """Return the root module that calls a module, as JSON: the same for all nodes of a cluster.

    Secrets are ephemeral variables, which the program writes neither to plans nor to states.
    """
    inputs = {name: f"${{var.{name}}}" for name in OWN_INPUTS}
    secrets = {name: f"${{var.{_SECRET}{name}}}" for name in settings.secrets}
    variables: dict[str, Any] = {name: {"type": "string"} for name in OWN_INPUTS}
    for name in settings.secrets:
        variables[_SECRET + name] = {"type": "string", "sensitive": True, "ephemeral": True}
    more: dict[str, Any] = {"version": settings.version} if settings.version else {}
    if settings.max_lifetime is not None:
        more["max_lifetime"] = int(settings.max_lifetime)
    call = {"source": source, **more, **_literal(settings.variables), **inputs, **secrets}
    return {
        "terraform": {"backend": {"http": {}}},
        "variable": variables,
        "module": {"node": call},
        "output": {"node": {"value": "${module.node.node}"}},
    }


def _literal(value: Any) -> Any:
    """Escape what would be templates in strings."""
    if isinstance(value, str):
        return value.replace("${", "$${").replace("%{", "%%{")
    if isinstance(value, Mapping):
        return {name: _literal(member) for name, member in value.items()}
    return [_literal(member) for member in value] if isinstance(value, Sequence) else value


class TerraformModule:
    """A module with its settings. Working directories are below ``base``, two levels deep."""

    def __init__(
        self,
        program: TerraformProgram,
        settings: TerraformSettings,
        project: ProjectAccess,
        base: Path,
    ) -> None:
        self.program, self.settings = program, settings
        self._project, self._base = project, base
        text = f"{settings.module} {settings.version} {program} {project.directory.resolve()}"
        name = hashlib.sha256(text.encode()).hexdigest()[:24]
        self._shared = base.resolve() / "modules" / name
        self._local = (project.directory / settings.module).resolve()
        # Relative paths are used in place; the directories of nodes are as deep as this one.
        source = os.path.relpath(self._local, self._shared)
        is_local = settings.is_local
        self._root = json.dumps(root_module(settings, source if is_local else settings.module))

    def initialise(self, state: NodeStateDocument, cancelled: Event) -> None:
        """Install the module and its providers, those of its lock file if it has one; NodeError if that fails."""
        make_directory(self._shared)
        with (self._base / "init.lock").open("w") as lock:  # plugin caches need one init at a time
            fcntl.flock(lock, fcntl.LOCK_EX)
            write_atomic(self._shared / "main.tf.json", self._root.encode())
            options = []
            if self.settings.is_local:
                if not self._local.is_dir():
                    raise NodeError(
                        f"module {self.settings.module} not found",
                        f"{self._local} is not a directory. Check out the commit that has it.",
                        code="terraform-failed",
                    )
                if (self._local / LOCK_FILE).exists():
                    shutil.copyfile(self._local / LOCK_FILE, self._shared / LOCK_FILE)
                    options = ["-lockfile=readonly"]
            with StateServer(state) as server:
                self.run("init", options, self._shared, server.environment, cancelled)

    @cached_property
    def digest(self) -> str:
        """Digest of the files of the module, of those that it calls, and of the lock file."""
        installed = json.loads((self._shared / ".terraform/modules/modules.json").read_text())
        digest = hashlib.sha256()
        places = {each["Key"]: self._shared / each["Dir"] for each in installed["Modules"]}
        for key, place in sorted(places.items()):
            for path in _files(place) if key else ():
                name = f"{key}/{path.relative_to(place)}"
                digest.update(f"{name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
        if (self._shared / LOCK_FILE).exists():
            digest.update((self._shared / LOCK_FILE).read_bytes())
        return f"sha256:{digest.hexdigest()}"

    def directory(self, id_: str) -> Path:
        """Return the working directory of a node."""
        directory = make_directory(self._base.resolve() / "nodes" / id_)
        write_atomic(directory / "main.tf.json", self._root.encode())
        if (self._shared / LOCK_FILE).exists():
            shutil.copyfile(self._shared / LOCK_FILE, directory / LOCK_FILE)
        return directory

    def run(
        self,
        command: str,
        args: Sequence[str],
        directory: Path,
        variables: Mapping[str, str],
        cancelled: Event,
        **more: Any,
    ) -> bytes:
        """Run a command in a working directory; see ``TerraformProgram``."""
        own = ("TF_PLUGIN_CACHE_DIR", "TF_CLI_CONFIG_FILE")
        files = [Path("~", name).expanduser() for name in (".terraformrc", ".tofurc")]
        if not any(map(os.environ.get, own)) and not any(map(Path.exists, files)):
            cache = make_directory(self._base / "plugins")
            variables = {**variables, "TF_PLUGIN_CACHE_DIR": str(cache)}
        environment = {**variables, "TF_DATA_DIR": str(self._shared / ".terraform")}
        words = [command, "-no-color", *args]
        return self.program.run(words, directory, environment, cancelled, **more)

    def secrets(self) -> dict[str, str]:
        """Return the values of secrets as variables of the environment."""
        names = self.settings.secrets.items()
        return {f"TF_VAR_{_SECRET}{name}": self._project.secret(of) for name, of in names}


def _files(directory: Path) -> Iterator[Path]:
    """Yield the files of a module, sorted, without what the program writes there."""
    for path in sorted(directory.rglob("*")):
        parts = path.relative_to(directory).parts
        if path.is_file() and not {".terraform", ".git"} & {*parts} and ".tfstate" not in path.name:
            yield path


@dataclass(frozen=True, slots=True)
class NodeModule:
    """A module for one node: ``id`` names its records, ``inputs`` are the values of ``OWN_INPUTS``."""

    module: TerraformModule
    id: str
    state: NodeStateDocument
    inputs: Mapping[str, str]
    cancelled: Event

    def plan(self, *options: str) -> tuple[bytes, dict[str, Any]]:
        """Return a plan as the program writes it, and as JSON. Takes no lock."""
        with ExitStack() as stack:
            descriptor, path = stack.enter_context(memory_file())
            self._run(
                stack, "plan", "-json", "-lock=false", f"-out={path}", *options, files=(descriptor,)
            )
            document = self._run(stack, "show", "-json", path, files=(descriptor,))
            return read_memory(descriptor), json.loads(document)

    def apply(self, plan: bytes | None = None, *, destroy: bool = False) -> None:
        """Apply a plan, else what the module says; NodeError with what failed.

        Recovers first.
        """
        self.recover()
        with ExitStack() as stack:
            args = ["-json", *(["-destroy"] if destroy else ())]
            files: tuple[int, ...] = ()
            if plan is None:
                args.append("-auto-approve")
            else:
                descriptor, path = stack.enter_context(memory_file(plan))
                args, files = [*args, path], (descriptor,)
            self._run(stack, "apply", *args, files=files)

    def _run(self, stack: ExitStack, command: str, *args: str, files: Sequence[int]) -> bytes:
        server = stack.enter_context(StateServer(self.state))
        variables = {f"TF_VAR_{name}": value for name, value in self.inputs.items()}
        environment = {**variables, **self.module.secrets(), **server.environment}
        directory = self.module.directory(self.id)
        words = [*(["-input=false"] if command != "show" else ()), *args]
        try:
            return self.module.run(
                command,
                words,
                directory,
                environment,
                self.cancelled,
                files=files,
                started=self._started,
            )
        except NodeError as error:
            raise self.state.failure or error from None
        finally:
            if not self.state.failure:
                (directory / _UNSAVED).unlink(missing_ok=True)

    def _started(self, pid: int) -> None:
        self.state.process = describe_process(pid)

    def recover(self) -> None:
        """Wait for a program that a killed command left behind, and save the state that it could not send."""
        while (holder := self.state.holder()) is not None:
            document, dead = holder
            if dead is None:
                raise NodeUnreachable(
                    f"{self.module.program.name} was interrupted on {document['host']} while it changed this node",
                    f"Run the command there, which continues. If that machine is lost: look for what has the key {self.inputs['key']}, then delete {self.state.lock_key} next to the state.",
                    code="terraform-interrupted",
                )
            if dead:
                break
            if self.cancelled.wait(0.5):
                raise UserInterrupt("stopped while waiting for another command")
        unsaved = self.module.directory(self.id) / _UNSAVED
        if unsaved.exists():
            self.state.restore(unsaved.read_bytes())
            unsaved.unlink()
        if holder:
            self.state.unlock()

    def clean(self) -> None:
        """Delete the working directory."""
        shutil.rmtree(self.module.directory(self.id), ignore_errors=True)
