"""The session of a command: its directory, streams, log level and redactor."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO

from trainctl.base.lazy_dataclass import dataclass
from trainctl.model.redaction import Redactor
from trainctl.views.terminal.output import TerminalOutput


class LogLevel(StrEnum):
    """Log verbosity on standard error; ``debug`` also prints tracebacks."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    DEBUG = "debug"


@dataclass(slots=True)
class CliSession:
    """Session of one command; ``directory`` is absolute once a command runs.

    Secrets registered with ``redactor`` are redacted in ``output``.
    """

    redactor: Redactor
    output: TerminalOutput
    stdin: TextIO
    directory: Path = Path()
    state_url: str | None = None
    environment: str | None = None
    log_level: LogLevel = LogLevel.WARNING

    @classmethod
    def of_process(cls) -> CliSession:
        """Create a session on the streams of the process; closed ones are devnull."""
        redactor = Redactor()
        output = TerminalOutput(
            _or_devnull(sys.stdout, "w"), _or_devnull(sys.stderr, "w"), redactor
        )
        return cls(redactor, output, _or_devnull(sys.stdin, "r"))

    @property
    def debug(self) -> bool:
        """Whether tracebacks are printed."""
        return self.log_level is LogLevel.DEBUG

    def set_log_level(self, level: LogLevel) -> None:
        """Send the log records of libraries, from this level on, through the output."""
        self.log_level = level
        if level in (LogLevel.INFO, LogLevel.DEBUG):
            import logging  # rarely needed

            root = logging.getLogger()
            stream = SimpleNamespace(write=lambda text: self.output.note(text.removesuffix("\n")))
            root.handlers = [logging.StreamHandler(stream)]
            root.handlers[0].setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
            root.setLevel(level.upper())


class CommandExit(Exception):
    """Ends a command that has reported its error itself, with an exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _or_devnull(stream: TextIO | None, mode: str) -> TextIO:
    return Path(os.devnull).open(mode) if stream is None else stream  # type: ignore[return-value]
