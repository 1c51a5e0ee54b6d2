"""Shell completion: commands by the table, addresses by the manifest and a state on this machine.

Addresses are kept in a file with what they were read from: reading them takes longer than a shell may wait.
Each import here is waited for, too.
"""

from __future__ import annotations

import os
from binascii import crc32
from collections.abc import Callable, Sequence

ADDRESS_COMMANDS = (
    *("status", "logs", "metrics", "results", "run", "stop", "ssh", "proxy", "download", "import"),
    *("history", "state show", "state mv", "state rm", "checkpoints list", "checkpoints download"),
    *("checkpoints url", "checkpoints upload", "checkpoints deploy", "session extend"),
)
"""Commands with an address as first argument."""
_STARTS = tuple(f"{command} " for command in ADDRESS_COMMANDS)
_ADDRESS_OPTIONS = ("--target", "--exclude", "--replace")
_GLOBAL_OPTIONS = ("-C", "--chdir", "--state", "--env", "--log-level")
_LINES: dict[str, Callable[[str, str], str]] = {
    "bash": lambda word, text: word,
    "zsh": lambda word, text: word.replace(":", r"\:") + (f":{text}" if text else ""),
    "fish": lambda word, text: f"{word}\t{text}",
}
"""An answer as a line, by shell."""


def complete(instruction: str) -> int:
    """Answer the script of a shell, for example ``complete_bash``: a line for each word that may come next.

    ``COMP_WORDS`` is the command line, ``COMP_CWORD`` the position of the incomplete word, by default the last.
    """
    line = _LINES.get(instruction.partition("_")[2])
    if line is None:
        return 1
    text = os.environ.get("COMP_WORDS", "")
    words = _split(text)
    at = int(os.environ.get("COMP_CWORD") or len(words) - (not text[-1:].isspace()))
    incomplete = words[at] if at < len(words) else ""
    for answer in _answers(words[1:at], incomplete):
        print(line(*answer))  # noqa: T201
    return 0


def _split(text: str) -> list[str]:
    """Return the words of a line; a quotation may be open at its end."""
    if not set(text) & set("\"'\\"):
        return text.split()
    import shlex
    from contextlib import suppress

    for end in ("", '"', "'"):
        with suppress(ValueError):
            return shlex.split(text + end)
    return text.split()


def _answers(args: Sequence[str], incomplete: str) -> list[tuple[str, str]]:
    """Return the words that may come next, with descriptions."""
    pairs = list(zip(["", *args], args, strict=False))
    options = {before: word for before, word in pairs if before in _GLOBAL_OPTIONS}
    words = [word for before, word in pairs if before not in options and word[:1] != "-"]
    is_address = f"{' '.join(words)} ".startswith(_STARTS) or {*args[-1:]} & {*_ADDRESS_OPTIONS}
    if is_address and not incomplete.startswith("-"):
        return [(name, "") for name in _addresses(incomplete, options)]
    found = _commands_and_options(args, words, incomplete)
    return [(word, text) for word, text in found if word.startswith(incomplete.rpartition("=")[2])]


def _commands_and_options(
    args: Sequence[str], words: Sequence[str], incomplete: str
) -> list[tuple[str, str]]:
    from enum import StrEnum

    from trainctl.cli.app import GLOBAL, HELP, ROOT, CommandGroup, CommandRow, load

    target: CommandGroup | CommandRow = ROOT
    for word in words:
        if isinstance(target, CommandGroup):
            target = next((row for row in target.commands if row.name == word), target)
    option, equals, _ = incomplete.partition("=")
    last = option if option and equals else "".join(args[-1:])
    if not incomplete.startswith("-") and not last.startswith("-"):
        rows = target.commands if isinstance(target, CommandGroup) else ()
        return [(row.name, row.help) for row in rows if " " not in row.name]
    if isinstance(target, CommandRow):
        own = load(target).options
    else:
        own = list(GLOBAL) if target is ROOT else []
    if incomplete.startswith("-") and not equals and "--" not in args:
        typed = {arg.partition("=")[0] for arg in args}
        spellings = {item: (*item.usage.names, item.usage.negative or "") for item in [*own, HELP]}
        return [
            (name, item.usage.help)
            for item, names in spellings.items()
            if item.repeatable or typed.isdisjoint(names)
            for name in names
        ]
    kinds = [
        item.kind for item in own if last in item.usage.names and issubclass(item.kind, StrEnum)
    ]
    return [(str(value), "") for kind in kinds for value in kind]


def _addresses(incomplete: str, options: dict[str, str]) -> list[str]:
    """Return the addresses that begin with a text; those of a sweep's jobs if it has a bracket."""
    directory = os.path.expanduser(options.get("-C", options.get("--chdir", "")))
    url = options.get("--state") or os.environ.get("TRAINCTL_STATE") or None
    try:
        found = _cached(os.path.join(os.getcwd(), directory), url, options.get("--env"))
    except Exception:  # noqa: BLE001 (the shell would print an error into the line)
        return []
    names = {text if "[" in incomplete else text.partition("[")[0] for text in found}
    return sorted(name for name in names if name.startswith(incomplete))


def _cached(directory: str, url: str | None, environment: str | None) -> list[str]:
    """Return the addresses of a directory, from the cache unless a file has changed."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    key = repr((directory, url, environment))
    path = os.path.join(home, "trainctl", "completion", f"{crc32(key.encode()):08x}")
    try:
        with open(path, errors="surrogateescape") as file:
            known, log, *found, version = file.read().split(
                "\n"
            )  # the version is missing in half a file
        if (known, version) == (key, _version(directory, log)):
            return found
    except (OSError, ValueError):
        pass
    log, found = _read(directory, url, environment)
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        with open(path, "w", errors="surrogateescape") as file:
            file.write("\n".join([key, log, *found, _version(directory, log)]))
    except OSError:
        pass
    return found


def _version(directory: str, log: str) -> str:
    """Return names, times and sizes of the manifest's files and of the state's log."""
    names = sorted(name for name in os.listdir(directory) if "trainctl." in name)
    paths = [os.path.join(directory, name) for name in names] + [log]
    found = [os.stat(path) for path in paths if os.path.exists(path)]
    return repr([names, *((state.st_mtime_ns, state.st_size) for state in found)])


def _read(directory: str, url: str | None, environment: str | None) -> tuple[str, list[str]]:
    """Read the manifest and the state; no bucket is asked, and no secret is read."""
    from contextlib import suppress
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    from trainctl.cli.options import PlanningFlags
    from trainctl.cli.session import CliSession
    from trainctl.cli.workspaces import open_workspace

    session = CliSession.of_process()
    session.directory, session.state_url, session.environment = Path(directory), url, environment
    found: set[str] = set()
    with open_workspace(session, PlanningFlags(offline=True)) as workspace:
        with suppress(Exception):  # an invalid manifest
            found.update(map(str, workspace.desired.resources))
        if not workspace.state_url.startswith("file:") or workspace.state_keys is not None:
            return directory, sorted(found)
        found.update(map(str, workspace.ledger_at(workspace.state_url).state().resources))
    return str(Path(unquote(urlsplit(workspace.state_url).path), "log")), sorted(found)
