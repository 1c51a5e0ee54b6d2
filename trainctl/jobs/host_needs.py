"""What a job's commands need on the host itself, as far as reading them can tell. Pure: commands and code in, names out."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

_VALUE = r"""(?:[^\s;&|<>()`\\"']|"[^"`()\\]*"|'[^']*')*"""
_WORD = re.compile(
    rf"\s*(?P<set>(?:[A-Za-z_]\w*\+?={_VALUE}\s+)*)(?:(?:exec|nohup|time)\s+)*(?P<program>[A-Za-z0-9_.+/~-]+)(?=[\s;&|]|$)"
)
_SEARCHED = r"PATH|PYTHONPATH|PYTHONHOME|PYTHONSTARTUP|VIRTUAL_ENV|CONDA_\w*|LD_LIBRARY_PATH"
"""Variables that change what is found: nothing is said of who sets one."""
_SETS = re.compile(rf"(?:^|\s)(?:{_SEARCHED})\+?=")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_SHELL = re.compile(r"(?:ba|da|z|k)?sh")
_SHEBANG = re.compile(rb"#!\s*(/\S+)(?:[ \t]+(?:-S[ \t]+)?([^\s=-][^\s=]*)(?=\s|$))?")
_SHELL_SYNTAX = frozenset("$`\\\"'|&;<>()*?[]#\n")
_HARMLESS = frozenset(
    ["echo", "printf", "mkdir", "ls", "touch", "cat", "true", "date", "pwd", "df", "free", "set", "ulimit", "sleep", "nvidia-smi"]
)  # fmt: skip
"""Commands after which the same programs and modules are found as before."""
_UNREADABLE = frozenset(
    [
        *("cd", "export", "unset", "source", ".", "eval", "env", "alias", "module", "ml", "conda", "mamba", "micromamba"),
        *("if", "for", "while", "until", "case", "function", "{", "[", "[[", "test", "trap", "shopt", "type", "command"),
        *("false", "exit", "read", "umask", "wait", ":", "let", "local", "time", "until", "hash", "builtin"),
    ]
)  # fmt: skip
"""Words of the shell, and commands that change what is found after them: from there on nothing is said."""
_MOST_FILES = 200


@dataclass(frozen=True, slots=True, order=True)
class HostNeeds:
    """The first program that matters, the modules it will import before anything else, and what is wrong already.

    Empty where the commands can't be read that far; what is not said is not wrong.
    """

    program: str = ""
    modules: tuple[str, ...] = ()
    missing_script: str = ""
    unexecutable: str = ""


@dataclass(frozen=True, slots=True)
class Sources:
    """A code tree as far as it is read: the kinds of its files by path, what a script imports, and which program runs it."""

    files: Mapping[str, str]
    imports: Callable[[PurePosixPath], tuple[str, ...]]
    interpreter: Callable[[PurePosixPath], str]


def sources(root: Path, files: Mapping[str, str]) -> Sources:
    """The code below ``root``, its files by path with their kinds (``x``, ``-`` or ``l``); each script is read once, however many jobs run it."""

    @cache
    def imports(script: PurePosixPath) -> tuple[str, ...]:
        return tuple(sorted(_imports(root, script, files)))

    return Sources(files, imports, cache(lambda script: _interpreter(root / script)))


def host_needs(attributes: Mapping[str, Any], code: Sources) -> HostNeeds:
    """Of a job that runs on the host."""
    runtime = attributes["runtime"]
    if any(re.fullmatch(_SEARCHED, name) for name in runtime["environment_variables"]):
        return HostNeeds()
    for command in runtime["start_commands"]:
        match = _WORD.match(command)
        if match is None or match["program"] in _UNREADABLE or _SETS.search(match["set"]):
            return HostNeeds()
        program = match["program"]
        if program in _HARMLESS:
            if _SHELL_SYNTAX & set(command):
                return HostNeeds()
            continue
        return _of_program(program, command[match.end() :], attributes, code)
    return HostNeeds()


def _of_program(program: str, rest: str, attributes: Mapping[str, Any], code: Sources) -> HostNeeds:
    """What the first command that matters needs."""
    if "/" in program and not program.startswith(("/", "~/")):
        return _of_script(program, attributes, code)
    if _PYTHON.fullmatch(program):
        return _of_python(program, rest, attributes, code)
    script = next(iter(_plain_words(rest)), "-") if _SHELL.fullmatch(program) else "-"
    missing = "" if script.startswith("-") else _missing(script, attributes, code)
    return HostNeeds(program, missing_script=missing)


def _of_script(program: str, attributes: Mapping[str, Any], code: Sources) -> HostNeeds:
    """What ``./run.sh`` needs: to be there, to be executable, and the interpreter that its first line names."""
    script = PurePosixPath(program)
    kind = code.files.get(str(script))
    if kind is None:
        return HostNeeds(missing_script=_missing(program, attributes, code))
    if kind == "-":
        return HostNeeds(unexecutable=str(script))
    return HostNeeds(code.interpreter(script) if kind == "x" else "")


def _interpreter(path: Path) -> str:
    """The program of a first line ``#!…``, or the one that it has ``env`` find; empty where there is none or it can't be read."""
    try:
        with path.open("rb") as stream:
            found = _SHEBANG.match(stream.readline(256))
    except OSError:
        return ""
    if found is None:
        return ""
    by_env = found[1].endswith(b"/env")
    return (found[2] or b"" if by_env else found[1]).decode("ascii", "replace")


def _missing(name: str, attributes: Mapping[str, Any], code: Sources) -> str:
    """The script, if it should be in the code and isn't; empty where it may be somewhere else."""
    script = PurePosixPath(name)
    outside = script.is_absolute() or ".." in script.parts or name.startswith("~")
    if outside or str(script) in code.files:
        return ""
    return "" if any(place in script.parents for place in _places(attributes)) else str(script)


def _of_python(program: str, rest: str, attributes: Mapping[str, Any], code: Sources) -> HostNeeds:
    """What ``python …`` imports: a script of the code, or a module."""
    words = _plain_words(rest)
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-"):
        if words[0] in ("-X", "-W"):
            words = words[1:]
        words = words[1:]
    if not words or words[0] in ("-c", "-"):
        return HostNeeds(program)
    if words[0] == "-m":
        name = words[1].partition(".")[0] if len(words) > 1 else ""
        here = PurePosixPath()
        local = _files(here, name, code.files) or _package(here, name, code.files)
        sought = name.isidentifier() and not local and name not in _mounted(attributes, here)
        return HostNeeds(program, (name,) if sought else ())
    script = PurePosixPath(words[0])
    if script.is_absolute() or ".." in script.parts or words[0].startswith("~"):
        return HostNeeds(program)
    if str(script) not in code.files:
        return HostNeeds(program, missing_script=_missing(words[0], attributes, code))
    mounted = _mounted(attributes, script.parent)
    return HostNeeds(program, tuple(one for one in code.imports(script) if one not in mounted))


def _places(attributes: Mapping[str, Any]) -> list[PurePosixPath]:
    """Where weights and directories of the host lie."""
    mounts = (*attributes["weights"], *attributes["mounts"])
    return [PurePosixPath(one["mount_location"]) for one in mounts if one.get("mount_location")]


def _mounted(attributes: Mapping[str, Any], home: PurePosixPath) -> set[str]:
    """What is mounted in a directory of the code, or somewhere below it, by its first name there."""
    inside = [place for place in _places(attributes) if place.is_relative_to(home)]
    return {name for place in inside for name in place.relative_to(home).parts[:1]}


def _plain_words(text: str) -> list[str]:
    """The words up to the first that the shell would look into."""
    end = next((at for at, letter in enumerate(text) if letter in _SHELL_SYNTAX), len(text))
    words = shlex.split(text[:end])
    cut = end < len(text) and text[:end][-1:].strip() != ""
    return words[:-1] if cut else words


def _imports(root: Path, script: PurePosixPath, files: Collection[str]) -> set[str]:
    """Modules that are neither Python's nor the code's, imported whatever happens when the script begins."""
    home, found = script.parent, set[str]()
    pending, seen = [script], {script}
    while pending and len(seen) < _MOST_FILES:
        for name in _imported(root / pending.pop()):
            here = _files(home, name, files)
            pending += [one for one in here if one.suffix == ".py" and one not in seen]
            seen.update(here)
            local = here or _package(home, name, files)
            if not local and name not in sys.stdlib_module_names:
                found.add(name)
    return found


def _files(home: PurePosixPath, name: str, files: Collection[str]) -> list[PurePosixPath]:
    """The files of the code that ``import name`` may run: Python's own, or a compiled ``name.*.so``."""
    written = [home / f"{name}.py", home / name / "__init__.py"]
    compiled = [PurePosixPath(one) for one in files if one.endswith(".so")]
    begins = f"{name}."
    return [
        *(one for one in written if str(one) in files),
        *(one for one in compiled if one.parent == home and one.name.startswith(begins)),
    ]


def _package(home: PurePosixPath, name: str, files: Collection[str]) -> bool:
    """Whether the directory is in the code: without an ``__init__.py`` it can be imported, too."""
    inside = f"{home / name}/"
    return any(one.startswith(inside) for one in files)


def _imported(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # the job itself will say so
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            yield statement.module.partition(".")[0]
        elif _may_change_the_path(statement):
            return


def _may_change_the_path(statement: ast.stmt) -> bool:
    """Whether what is imported after it may lie elsewhere: ``sys.path.insert(…)`` and the like."""
    return isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Constant)
