"""A job's own line on a terminal: its colours and its progress bars, and nothing that reaches beyond the line."""

from __future__ import annotations

import re

from trainctl.views.escape import UNSEEN, written

_SEQUENCE = re.compile(
    r"\x1b(?:(?P<style>\[[0-9;:]*m)|\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~])"
)
_RESET = "\x1b[0m"


def tamed(text: str, *, color: bool) -> str:
    """The line with its styles (if ``color``), tabs and carriage returns; other sequences are left out, other controls written out.

    A style ends with the line.
    """
    shown, at, styled = "", 0, False
    for sequence in _SEQUENCE.finditer(text):
        shown += _visible(text[at : sequence.start()])
        at = sequence.end()
        if color and sequence["style"] is not None:
            shown += sequence[0]
            styled = True
    return shown + _visible(text[at:]) + (_RESET if styled else "")


def _visible(text: str) -> str:
    return UNSEEN.sub(lambda one: one[0] if one[0] in "\t\r" else written(one), text)
