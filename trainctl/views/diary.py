"""What libraries log, on standard error, through the one door."""

from __future__ import annotations

import logging

from trainctl.views.output import Output


class _Handler(logging.Handler):
    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        self._output.note(self.format(record))


def start_diary(output: Output, level: str) -> None:
    """Show log records from this level on."""
    handler = _Handler(output)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
