"""``llms.txt`` (https://llmstxt.org), from ``docs/index.md``."""

from __future__ import annotations

import re
from pathlib import Path

INDEX = Path(__file__).parents[1] / "index.md"


def page() -> str:
    """Return the text of the file: the index, its summary as a quote and its links from the root."""
    text = re.sub(r"<!--.*?-->\n*", "", INDEX.read_text(encoding="utf-8"))
    title, summary, rest = text.split("\n\n", 2)
    quote = "\n".join(f"> {line}" for line in summary.splitlines())
    return re.sub(r"\]\((?!https?:|#)", "](docs/", f"{title}\n\n{quote}\n\n{rest}")
