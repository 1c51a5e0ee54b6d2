"""Lines that are drawn again and again in the same place of a terminal, on standard error."""

from __future__ import annotations

import re
import shutil
from typing import Self

from trainctl.views.output import Output
from trainctl.views.text import columns

_STYLE = re.compile(r"\x1b\[\d{1,2}m")
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


class Live:
    """Use it as a context: what was drawn is taken away and the cursor comes back, whatever happens."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._drawn = 0

    def __enter__(self) -> Self:
        self._output.draw([], _HIDE_CURSOR)
        return self

    def __exit__(self, *_: object) -> None:
        self._output.draw([], self._away() + _SHOW_CURSOR)

    def show(self, lines: list[str]) -> None:
        """Draw these in place of those before, as many as the window has room for."""
        width, height = shutil.get_terminal_size()
        away, shown = self._away(), []
        for line in lines:
            rows = max(1, -(-columns(_STYLE.sub("", line)) // max(width, 1)))
            if self._drawn + rows >= height:
                break
            self._drawn += rows
            shown.append(line)
        self._output.draw(shown, away)

    def _away(self) -> str:
        drawn, self._drawn = self._drawn, 0
        return f"\x1b[{drawn}A\r\x1b[J" if drawn else ""
