""" "Did you mean": the nearest of some names."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_MAX_COMPARED = 500
_MAX_LISTED = 12


def nearest(word: str, names: Collection[str]) -> str | None:
    """The name that was probably meant. Among very many, only one that differs in case: comparing all would not be linear."""
    folded = word.casefold()
    if len(names) > _MAX_COMPARED:
        return next((name for name in names if name.casefold() == folded), None)
    by_fold = {name.casefold(): name for name in names}
    found = difflib.get_close_matches(folded[:200], by_fold, n=1, cutoff=0.6)
    return by_fold[found[0]] if found else None


def did_you_mean(word: str, names: Collection[str]) -> str:
    """A sentence: the nearest name, or all of them where they are few."""
    near = nearest(word, names)
    if near is not None:
        return f"Did you mean {near!r}?"
    if not names:
        return "None are declared."
    if len(names) <= _MAX_LISTED:
        return f"Known: {', '.join(sorted(names))}."
    return ""
