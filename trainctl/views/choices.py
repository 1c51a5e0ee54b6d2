"""Tables whose columns are chosen by the room that there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainctl.views.text import Style, columns, plain, table

Cells = Mapping[str, Sequence[str]]
"""The cells of each column, by its header. What is behind a ``/`` isn't shown: it tells apart the forms in which a column may stand."""


def chosen(
    choices: Sequence[Sequence[str]], cells: Cells, width: int | None, narrowest: Mapping[str, int]
) -> Sequence[str]:
    """The first choice whose columns fit, those of ``narrowest`` as narrow as they may be; the last where none does.

    Columns of which there are no cells are left out of every choice.
    """
    headers: Sequence[str] = ()
    for choice in choices:
        headers = [one for one in choice if one in cells]
        if fit(headers, cells, width, narrowest):
            break
    return headers


def fit(
    headers: Sequence[str], cells: Cells, width: int | None, narrowest: Mapping[str, int]
) -> bool:
    """Whether a table of these columns fits."""
    if width is None:
        return True
    widths = {one: max(map(columns, (_shown(one), *cells[one]))) for one in headers}
    least = (min(size, narrowest.get(one, size)) for one, size in widths.items())
    return sum(least) + 2 * (len(headers) - 1) <= width


def table_of(
    headers: Sequence[str],
    cells: Cells,
    width: int | None,
    narrowest: Mapping[str, int],
    *,
    right: frozenset[str] = frozenset(),
    style: Style = plain,
    indent: str = "",
) -> list[str]:
    """The table of what was chosen: only what ``narrowest`` names shrinks."""
    shrinks = {_shown(one): narrowest[one] for one in headers if one in narrowest}
    return table(
        [_shown(one) for one in headers],
        list(zip(*(cells[one] for one in headers), strict=True)),
        right=right,
        width=width,
        shrinks=frozenset(shrinks),
        narrowest=shrinks,
        style=style,
        indent=indent,
    )


def _shown(header: str) -> str:
    return header.partition("/")[0]
