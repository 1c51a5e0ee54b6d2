"""Shell completion: commands by the table, addresses by the manifest and a state on this machine.

Addresses are kept in a file with what they were read from: reading them takes longer than a shell may wait.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from typer._click.shell_completion import CompletionItem, get_completion_class
from typer.completion import completion_init  # type: ignore[attr-defined]

from trainctl.cli.app import build

ADDRESS_COMMANDS = (
    *("status", "logs", "metrics", "run", "stop", "ssh", "proxy", "download", "import", "history"),
    *("state show", "state mv", "state rm", "checkpoints list", "checkpoints download"),
    *("checkpoints url", "checkpoints upload", "checkpoints deploy", "session extend"),
)
"""Commands with an address as first argument."""
_ADDRESS_OPTIONS = ("--target", "--exclude", "--replace")
_GLOBAL_OPTIONS = ("-C", "--chdir", "--state", "--env", "--log-level")


def complete(instruction: str) -> int:
    """Answer the shell's script, which typer writes: ``complete_bash``."""
    completion_init()
    shell = get_completion_class(instruction.partition("_")[2])
    if shell is None:
        return 1
    completer = shell(build(), {}, "trainctl", "_TRAINCTL_COMPLETE")
    by_parameter = completer.get_completions

    def completions(args: list[str], incomplete: str) -> list[CompletionItem]:
        pairs = list(zip(["", *args], args, strict=False))
        options = {before: word for before, word in pairs if before in _GLOBAL_OPTIONS}
        words = [word for before, word in pairs if before not in options and word[:1] != "-"]
        command = f"{' '.join(words)} "
        is_address = command.startswith(_STARTS) or {*args[-1:]} & {*_ADDRESS_OPTIONS}
        if not is_address or incomplete.startswith("-"):
            return by_parameter(args, incomplete)
        return [CompletionItem(name) for name in _matching(incomplete, options)]

    completer.get_completions = completions  # type: ignore[method-assign]
    print(completer.complete())  # noqa: T201
    return 0


_STARTS = tuple(f"{command} " for command in ADDRESS_COMMANDS)


def _matching(incomplete: str, options: dict[str, str]) -> list[str]:
    """Return the addresses that begin with a text; those of a sweep's jobs if it has a bracket."""
    directory = Path(options.get("-C", options.get("--chdir", ""))).expanduser().absolute()
    url = options.get("--state") or os.environ.get("TRAINCTL_STATE") or None
    found: list[str] = []
    with contextlib.suppress(Exception):  # the shell would print an error into the line
        found = _cached(directory, url, options.get("--env"))
    names = {text if "[" in incomplete else text.partition("[")[0] for text in found}
    return sorted(name for name in names if name.startswith(incomplete))


def _cached(directory: Path, url: str | None, environment: str | None) -> list[str]:
    """Return the addresses of a directory, from the cache unless a file has changed."""
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    name = hashlib.sha256(json.dumps([str(directory), url, environment]).encode()).hexdigest()
    path = Path(home, "trainctl", "completion", f"{name}.json")
    with contextlib.suppress(OSError, ValueError):
        version, log, found = json.loads(path.read_bytes())
        if version == _version(directory, log):
            return list(found)
    log, found = _read(directory, url, environment)
    with contextlib.suppress(OSError):
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        path.write_text(json.dumps([_version(directory, log), log, found]))
    return found


def _version(directory: Path, log: str) -> list[Any]:
    """Return names, times and sizes of the manifest's files and of the state's log."""
    paths = [path for path in (*sorted(directory.glob("*trainctl.*")), Path(log)) if path.exists()]
    return [[path.name, path.stat().st_mtime_ns, path.stat().st_size] for path in paths]


def _read(directory: Path, url: str | None, environment: str | None) -> tuple[str, list[str]]:
    """Read the manifest and the state; no bucket is asked, and no secret is read."""
    from trainctl.cli.options import PlanningFlags
    from trainctl.cli.session import CliSession
    from trainctl.cli.workspaces import open_workspace

    session = CliSession.of_process()
    session.directory, session.state_url, session.environment = directory, url, environment
    found: set[str] = set()
    with open_workspace(session, PlanningFlags(offline=True)) as workspace:
        with contextlib.suppress(Exception):  # an invalid manifest
            found.update(map(str, workspace.desired.resources))
        if not workspace.state_url.startswith("file:") or workspace.state_keys is not None:
            return str(directory), sorted(found)
        found.update(map(str, workspace.ledger_at(workspace.state_url).state().resources))
    return str(Path(unquote(urlsplit(workspace.state_url).path), "log")), sorted(found)
