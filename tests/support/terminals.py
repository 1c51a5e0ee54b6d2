"""Outputs whose streams are read by tests: pipes and terminals in memory."""

from __future__ import annotations

import io

from trainctl.model.redaction import Redactor
from trainctl.views.terminal.output import TerminalOutput


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Screen:
    """An output with the texts of both of its streams, whose ``secret`` is redacted."""

    def __init__(
        self, stream: type[io.StringIO] = io.StringIO, *, secret: str = "", **environment: str
    ) -> None:
        self._out, self._err = stream(), stream()
        redactor = Redactor()
        if secret:
            redactor.register(secret)
        self.output = TerminalOutput(
            self._out, self._err, redactor, {"TERM": "xterm", **environment}
        )

    @property
    def out(self) -> str:
        return self._out.getvalue()

    @property
    def err(self) -> str:
        return self._err.getvalue()
