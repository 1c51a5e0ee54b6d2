"""What a field or a code means, for people."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence

from trainctl.manifest.fields import ManifestField
from trainctl.model.diagnostics import Explanation
from trainctl.views.terminal.output import TerminalOutput
from trainctl.views.terminal.text import pad

_WIDEST = 100


def code_lines(explanation: Explanation, output: TerminalOutput) -> list[str]:
    """A code: its sentence, then the rest of its text, examples as they are."""
    lines = [f"{output.style(explanation.code, 'bold')}: {explanation.title}"]
    for paragraph in explanation.text.split("\n\n"):
        if not paragraph:
            continue
        lines += [
            "",
            *(
                paragraph.splitlines()
                if paragraph.startswith("    ")
                else _wrap_text(paragraph, output)
            ),
        ]
    return lines


def field_lines(
    field: ManifestField, below: Sequence[ManifestField], output: TerminalOutput
) -> list[str]:
    """A field: what it takes, what it means, and the fields directly below it."""
    lines = [f"{output.style(field.path, 'bold')}: {_field_type(field)}"]
    lines += [f"  {line}" for line in _wrap_text(field.meaning, output)]
    width = max((len(one.steps[-1]) for one in below), default=0)
    if below:
        lines.append("")
    for one in below:
        lines.append(f"  {pad(one.steps[-1], width)}  {_field_type(one)}")
        lines += [f"  {' ' * width}  {line}" for line in _wrap_text(one.meaning, output, width + 4)]
    return lines


def _field_type(field: ManifestField) -> str:
    if field.required:
        return f"{field.type} (required)"
    if field.default in (None, [], ""):
        return field.type
    return f"{field.type} (default: {json.dumps(field.default, ensure_ascii=False)})"


def _wrap_text(text: str, output: TerminalOutput, indent: int = 2) -> list[str]:
    width = min(output.width or _WIDEST, _WIDEST) - indent
    return textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False)
