"""Virtual environments, built once per digest of a requirements file."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple

from trainctl.base.filesystem.files import make_directory, read_json, remove_tree, write_json
from trainctl.base.lease import FileLease
from trainctl.base.protocol.host import EnvironmentRequest, EnvironmentResponse
from trainctl.errors import RequirementsError, TrainctlError
from trainctl.node.cache.code_archives import open_archive
from trainctl.node.environment.workspace import QUERY_SECONDS, run_in_login_shell
from trainctl.node.system.layout import Layout

Emit = Callable[[Dict[str, Any]], None]

_INCLUDED = re.compile(r"^\s*(?:-r|--requirement|-c|--constraint)[\s=]*(\S+)")
_LOCAL = re.compile(r"^\s*(?:-e\b|--editable\b|\.{0,2}/|file:)")
_DESCRIBE = "import json,os,platform,sys; print(json.dumps([os.path.realpath(sys.executable),platform.python_version(),platform.machine()]))"
_LAST_LINES = 12


class Interpreter(NamedTuple):
    """The Python interpreter that a job would use."""

    path: str
    version: str
    machine: str


def build_environment(request: EnvironmentRequest, emit: Emit) -> EnvironmentResponse:
    """Build a virtual environment from a requirements file, once per digest."""
    layout = Layout(request["root"])
    texts = requirement_texts(layout, request["code"], str(request["requirements"]))
    python = _interpreter()
    identity = [sorted(texts.items()), *python]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    environment = _VirtualEnvironment(layout, digest)
    if environment.is_complete:
        environment.touch()
        return {"venv": str(environment.path), "built": False}
    make_directory(layout.environments)
    with FileLease(layout.environments / f"{digest}.lock"):
        if not environment.is_complete:
            environment.build(python, texts, str(request["requirements"]), emit)
    return {"venv": str(environment.path), "built": True}


def requirement_texts(layout: Layout, code: Any, name: str) -> Dict[str, str]:
    """Read a requirements file with its includes; TrainctlError if it names local files."""
    texts: Dict[str, str] = {}
    with open_archive(layout, code) as stream, tarfile.open(fileobj=stream) as tar:
        pending = [os.path.normpath(name)]
        while pending:
            path = pending.pop()
            if path in texts:
                continue
            texts[path] = _text(tar, path)
            for line in texts[path].splitlines():
                if _LOCAL.match(line):
                    raise RequirementsError(
                        f"{path} refers to a local project: {line.strip()!r}",
                        "Environments are shared by digest. Install local projects in a start command.",
                    )
                match = _INCLUDED.match(line)
                if match and "://" not in match[1]:
                    pending.append(os.path.normpath(str(Path(path).parent / match[1])))
    return texts


class _VirtualEnvironment:
    """One environment, complete once its marker exists; its scripts fix its path."""

    def __init__(self, layout: Layout, digest: str) -> None:
        self.path = layout.environments / digest
        self._marker = layout.environments / f"{digest}.json"

    @property
    def is_complete(self) -> bool:
        """Check for the marker and the interpreter."""
        return read_json(self._marker) is not None and (self.path / "bin" / "python").exists()

    def touch(self) -> None:
        """Record its use, which protects it from garbage collection for a while."""
        os.utime(self._marker)

    def build(self, python: Interpreter, texts: Mapping[str, str], name: str, emit: Emit) -> None:
        """Build it from scratch; TrainctlError with the installer's last lines."""
        remove_tree(self.path)
        try:
            self._install(python, texts, name, emit)
        except (TrainctlError, OSError):
            remove_tree(self.path)
            raise
        write_json(self._marker, {"requirements": dict(texts), "python": list(python)})

    def _install(
        self, python: Interpreter, texts: Mapping[str, str], name: str, emit: Emit
    ) -> None:
        make_directory(self.path)
        directory = self.path / "requirements"
        for path, text in texts.items():
            target = directory / path
            make_directory(target.parent)
            target.write_text(text)
        for argv in _install_commands(python, self.path, directory / os.path.normpath(name)):
            _run(argv, directory, emit)


def _install_commands(python: Interpreter, path: Path, requirements: Path) -> List[List[str]]:
    """Use uv if it is installed, as it is ten times as fast; else venv and pip."""
    uv = run_in_login_shell("command -v uv", None).stdout.strip()
    own = str(path / "bin" / "python")
    if uv:
        return [
            [uv, "venv", "--quiet", "--allow-existing", "--python", python.path, str(path)],
            [uv, "pip", "install", "--python", own, "-r", str(requirements)],
        ]
    return [
        [python.path, "-m", "venv", str(path)],
        [own, "-m", "pip", "install", "--disable-pip-version-check", "-r", str(requirements)],
    ]


def _run(argv: List[str], directory: Path, emit: Emit) -> None:
    last: List[str] = []
    with subprocess.Popen(
        argv,
        cwd=str(directory),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            last = [*last, line.rstrip()][-_LAST_LINES:]
            emit({"line": line.rstrip()[:200]})
    if process.returncode != 0:
        raise RequirementsError("cannot install the requirements", "\n".join(last))


def _interpreter() -> Interpreter:
    paths = run_in_login_shell("command -v python3 || command -v python", None).stdout.split()
    if not paths:
        raise RequirementsError(
            "python3 not found on the login shell's PATH",
            "Install it, or set venv.",
        )
    description = subprocess.run(
        [paths[-1], "-I", "-c", _DESCRIBE], capture_output=True, text=True, timeout=QUERY_SECONDS
    )
    return Interpreter(*json.loads(description.stdout))


def _text(tar: tarfile.TarFile, path: str) -> str:
    try:
        member = tar.extractfile(path)
    except KeyError:
        member = None
    if member is None:
        raise RequirementsError(
            f"file {path!r} not found in the code",
            "Requirements must be part of the code.",
        )
    return member.read().decode(errors="replace")
