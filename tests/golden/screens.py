"""Snapshots of screens, each a text file, and screens in windows of several widths."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from trainctl.views.terminal.text import display_width


class Screen(SingleFileSnapshotExtension):
    """One text file for each screen."""

    file_extension = "txt"
    _write_mode = WriteMode.TEXT


def text(*screens: Sequence[str]) -> str:
    """The lines of screens, with an empty line between them."""
    return "\n\n".join("\n".join(lines) for lines in screens) + "\n"


def windows(view: Callable[[int], Sequence[str]], *widths: int) -> str:
    """The screen in windows of several widths, in which it must fit."""
    sections = []
    for width in widths:
        lines = view(width)
        assert max(map(display_width, lines)) <= width
        sections.append([f"=== {width} columns", *lines])
    return text(*sections)
