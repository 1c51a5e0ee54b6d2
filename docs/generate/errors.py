"""``docs/reference/errors.md``, from the texts that ``trainctl explain`` prints."""

from __future__ import annotations

import re
from collections.abc import Iterator

from docs.generate.markdown import fence, text_of
from trainctl.model.diagnostics import error_reference


def page() -> str:
    """Return the text of the page."""
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
