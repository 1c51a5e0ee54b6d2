"""Short pages of the reference, and ``llms.txt``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from docs.generate.markdown import code, fence, table, text_of
from trainctl import errors
from trainctl.cli.command_notes import EXIT_CODES, NOTES
from trainctl.errors import TrainctlError
from trainctl.model.diagnostics import error_reference

DOCS = Path(__file__).parents[1]
_BENCHMARKS = """\
# Benchmarks

Each benchmark runs both sides in turn on one machine; a figure beyond its limit fails it.
A ratio is trainctl's value divided by that of the other side. Rates and times depend on the load.
"""
_EXIT_CODES = """\
# Exit codes

Each error class has one exit code. Scripts can rely on these numbers; they don't change.
"""
_COMMANDS = """\
## By command

Codes that a command returns in addition to `0`, `1`, `64` and `130`, or with a meaning of its own.
"""


def benchmarks_page() -> str:
    """``docs/reference/benchmarks.md``, from ``docs/reference/benchmarks.toml``."""
    data = tomllib.loads((DOCS / "reference" / "benchmarks.toml").read_text(encoding="utf-8"))
    lines = [_BENCHMARKS, f"Machine: {data['machine']}", ""]
    for benchmark in data["benchmark"]:
        command, commit = benchmark["command"], benchmark["commit"]
        lines += [f"## {benchmark['title']}", "", f"`{command}` at commit `{commit}`:", ""]
        keys = ("case", "trainctl", "other", "figure", "limit")
        rows = ([result[key] for key in keys] for result in benchmark["results"])
        lines += table(("case", "trainctl", benchmark["other"], "figure", "limit"), rows)
        lines += [benchmark["note"], ""] if "note" in benchmark else []
    return text_of(lines)


def errors_page() -> str:
    """``docs/reference/errors.md``, from the texts that ``trainctl explain`` prints."""
    return text_of(_fenced(error_reference()))


def _fenced(text: str) -> Iterator[str]:
    """The lines, with indented examples as blocks; those after ``Wrong:`` and ``Right:`` are manifests."""
    language = "text"
    for paragraph in re.split(r"\n\n(?!    )", text):
        plain, *blocks = re.split(r"(?:^|\n\n)(?=    )", paragraph)
        if plain:
            yield from (plain, "")
        if blocks:
            language = "yaml" if plain in ("Wrong:", "Right:") else "text"
            lines = "\n\n".join(blocks).splitlines()
            yield from fence(language, "\n".join(line[4:] for line in lines))


def exit_codes_page() -> str:
    """``docs/reference/exit-codes.md``, from the table of exit codes and the error classes."""
    codes = ((code(str(one)), meaning, _errors(one)) for one, meaning in EXIT_CODES.items())
    commands = (
        (code(f"trainctl {name}"), code(str(one)), meaning)
        for name, notes in NOTES.items()
        for one, meaning in sorted(notes.exit_codes.items())
    )
    return text_of(
        [
            _EXIT_CODES,
            *table(("code", "meaning", "error codes"), codes),
            "`1` is the exit code of all other [error codes](errors.md).",
            "",
            _COMMANDS,
            *table(("command", "code", "meaning"), commands),
        ]
    )


def _errors(exit_code: int) -> str:
    """The error codes of the classes with that exit code; too many to list for 1."""
    classes = [one for one in vars(errors).values() if isinstance(one, type)]
    names = {
        one.default_code
        for one in classes
        if issubclass(one, TrainctlError) and one.exit_code == exit_code != 1
    }
    return ", ".join(f"[`{name}`](errors.md#{name})" for name in sorted(names))


def llms_text() -> str:
    """``llms.txt`` (https://llmstxt.org), from ``docs/index.md``: its summary as a quote, links from the root."""
    text = re.sub(r"<!--.*?-->\n*", "", (DOCS / "index.md").read_text(encoding="utf-8"))
    title, summary, rest = text.split("\n\n", 2)
    quote = "\n".join(f"> {line}" for line in summary.splitlines())
    return re.sub(r"\]\((?!https?:|#)", "](docs/", f"{title}\n\n{quote}\n\n{rest}")
