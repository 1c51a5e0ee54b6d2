"""Virtual environments, built once per digest of a requirements file."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping

from trainctl.base.filesystem.files import make_directory, read_json, remove_tree, write_json
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.lease import FileLease
from trainctl.base.protocol.host import EnvironmentRequest, EnvironmentResponse
from trainctl.errors import RequirementsError, TrainctlError
from trainctl.node.cache.code_archives import open_archive
from trainctl.node.environment.workspace import QUERY_SECONDS, run_in_login_shell
from trainctl.node.system.layout import Layout

Emit = Callable[[Dict[str, Any]], None]

_INCLUDED = compile_lazily(r"^\s*(?:-r|--requirement|-c|--constraint)[\s=]*(\S+)")
_LOCAL = compile_lazily(r"^\s*(?:-e\b|--editable\b|\.{0,2}/|file:)")
_DESCRIBE = "import json,os,platform,sys; print(json.dumps([os.path.realpath(sys.executable),platform.python_version(),platform.machine()]))"
"""Prints path, version and machine of the interpreter that a job would use."""
_LAST_LINES = 12


def build_environment(request: EnvironmentRequest, emit: Emit) -> EnvironmentResponse:
    """Build a virtual environment from a requirements file, once per digest."""
    layout, name = Layout(request["root"]), str(request["requirements"])
    texts = requirement_texts(layout, request["code"], name)
    paths = run_in_login_shell("command -v python3 || command -v python", None).stdout.split()
    if not paths:
        raise RequirementsError(
            "python3 not found on the login shell's PATH", "Install it, or set venv."
        )
    query = [paths[-1], "-I", "-c", _DESCRIBE]
    description = subprocess.run(query, capture_output=True, text=True, timeout=QUERY_SECONDS)
    python: List[str] = json.loads(description.stdout)
    digest = hashlib.sha256(json.dumps([sorted(texts.items()), *python]).encode()).hexdigest()
    path = layout.environments / digest  # fixed, as scripts name it
    marker = layout.environments / f"{digest}.json"

    def is_complete() -> bool:
        return read_json(marker) is not None and (path / "bin" / "python").exists()

    if is_complete():
        os.utime(marker)  # protects it from garbage collection for a while
        return {"venv": str(path), "built": False}
    make_directory(layout.environments)
    with FileLease(layout.environments / f"{digest}.lock"):
        if not is_complete():
            remove_tree(path)
            try:
                _install(python[0], path, texts, name, emit)
            except (TrainctlError, OSError):
                remove_tree(path)
                raise
            write_json(marker, {"requirements": texts, "python": python})
    return {"venv": str(path), "built": True}


def requirement_texts(layout: Layout, code: Any, name: str) -> Dict[str, str]:
    """Read a requirements file with its includes; TrainctlError if it names local files."""
    texts: Dict[str, str] = {}
    with open_archive(layout, code) as stream, tarfile.open(fileobj=stream) as tar:
        pending = [os.path.normpath(name)]
        while pending:
            path = pending.pop()
            if path in texts:
                continue
            try:
                member = tar.extractfile(path)
            except KeyError:
                member = None
            if member is None:
                raise RequirementsError(
                    f"file {path!r} not found in the code", "Requirements must be part of the code."
                )
            texts[path] = member.read().decode(errors="replace")
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


def _install(python: str, path: Path, texts: Mapping[str, str], name: str, emit: Emit) -> None:
    """Use uv if it is installed, as it is ten times as fast; else venv and pip."""
    directory, own = make_directory(path) / "requirements", str(path / "bin" / "python")
    for file, text in texts.items():
        target = directory / file
        make_directory(target.parent)
        target.write_text(text)
    requirements = str(directory / os.path.normpath(name))
    uv = run_in_login_shell("command -v uv", None).stdout.strip()
    if uv:
        commands = [
            [uv, "venv", "--quiet", "--allow-existing", "--python", python, str(path)],
            [uv, "pip", "install", "--python", own, "-r", requirements],
        ]
    else:
        commands = [
            [python, "-m", "venv", str(path)],
            [own, "-m", "pip", "install", "--disable-pip-version-check", "-r", requirements],
        ]
    for argv in commands:
        _run(argv, directory, emit)


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
