"""Format the result of ``import truss``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from trainctl.model.imported_manifest import ImportedManifest, ImportOutcome
from trainctl.views.terminal.text import Style, escape, pad, shorten

_TITLES = {
    ImportOutcome.CHANGED: ("Changed meaning:", "yellow"),
    ImportOutcome.MISSING: ("Not carried over:", "yellow"),
    ImportOutcome.DIFFERENT: ("Not carried over, so that runs do something else:", "red"),
}
_VALUE = 60


def imported_lines(result: ImportedManifest, folder: str, style: Style) -> Iterator[str]:
    """Yield the fields by what became of them, and the next step; ``folder`` is the manifest's."""
    yield style("Carried over:", "green")
    carried = {name: escape(shorten(text, _VALUE)) for name, text in result.carried.items()}
    width = max(map(len, carried))
    for name, text in carried.items():
        yield f"  {pad(name, width)}  {text}".rstrip()
    for outcome, (title, color) in _TITLES.items():
        notes = [note for note in result.notes if note.outcome is outcome]
        if notes:
            yield from ("", style(title, color))
        for note in notes:
            yield f"  {escape(note.field)}: {escape(note.text)}"
    yield ""
    yield f"Addresses: project.{result.project}, job.{result.job}."
    variables = list(dict.fromkeys(result.secrets.values()))
    first = f"set {', '.join(variables)}, then " if variables else ""
    place = "" if folder == "." else f"-C {shlex.quote(folder)} "
    yield f"Next: {first}run trainctl {place}plan."
