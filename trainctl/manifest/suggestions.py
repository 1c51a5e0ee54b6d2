"""Suggestions of similar names."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_MAX_COMPARED = 500
_MAX_LISTED = 12


def nearest(word: str, names: Collection[str]) -> str | None:
    """Return the most similar name; for more than 500 names ignore only case."""
    folded = word.casefold()
    if len(names) > _MAX_COMPARED:
        return next((name for name in names if name.casefold() == folded), None)
    by_fold = {name.casefold(): name for name in names}
    matches = difflib.get_close_matches(folded[:200], by_fold, n=1, cutoff=0.6)
    return by_fold[matches[0]] if matches else None


def did_you_mean(word: str, names: Collection[str]) -> str:
    """Return a sentence with the most similar name, or with all if there are few."""
    near = nearest(word, names)
    if near is not None:
        return f"Did you mean {near!r}?"
    if not names:
        return "None are declared."
    if len(names) <= _MAX_LISTED:
        return f"Known: {', '.join(sorted(names))}."
    return ""
