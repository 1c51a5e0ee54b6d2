"""Paths as the site of the Hugging Face Hub has them, and as people copy them: what to write for what they name."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_PAGES = ("tree", "blob")
_VIEWS = (*_PAGES, "resolve", "raw")


def of_page(host: str, path: str) -> str | None:
    """How the source is written that a page of the site shows; None where it is no page of a repository, but perhaps a file."""
    words = [unquote(word) for word in path.split("/")]
    repo, inside = _taken_apart(words)
    is_page = host in _HOSTS and repo and (not inside or inside[0] in _PAGES)
    return source_of(words) if is_page else None


def source_of(words: Sequence[str], revision: str = "") -> str:
    """How ``[models|datasets, ]OWNER, NAME[, VIEW, REVISION][, PATH…]`` is written as a source."""
    repo, inside = _taken_apart(words)
    if not repo:
        return "hf://OWNER/REPO[@REVISION]"
    folder = inside[:1] == ["tree"]
    if inside[:1] and inside[0] in _VIEWS:
        revision, inside = "".join(inside[1:2]), inside[2:]
    source = f"hf://{'/'.join(repo)}" + (f"@{revision}" if revision not in ("", "main") else "")
    pattern = f"/{'/'.join(inside)}" + ("/" if folder else "")
    return f"{source} and allow_patterns: [{pattern!r}]" if inside else source


def _taken_apart(path: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a repository, and what stands behind them; neither where there is none."""
    words = [word for word in path if word]
    if len(words) > 2 and words[0] == "models":
        del words[0]
    size = 3 if words[:1] == ["datasets"] else 2
    found = len(words) >= size and words[0] != "spaces"
    return (words[:size], words[size:]) if found else ([], [])
