"""Sweeps: the combinations of a ``matrix``, as GitHub Actions forms them. DESIGN.md says how, word for word."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from trainctl.desired.expression import PATTERN, Expression
from trainctl.manifest.scalars import scalar_text
from trainctl.manifest.suggestions import did_you_mean
from trainctl.manifest.tree import ManifestNode, Scalar
from trainctl.manifest.types.weights import is_source
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, error, warning

MAX_COMBINATIONS = 2000
"""Of all matrices of a manifest together."""
MAX_NODES = 1_000_000
"""Values of all jobs that matrices make together, so that a small file can't ask for a large manifest."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_INCLUDE, _EXCLUDE = "include", "exclude"
_MAX_KEY = 500

Report = Callable[[Diagnostic], None]
Values = dict[str, Scalar]


@dataclass(frozen=True, slots=True)
class MatrixJob:
    """One job of a matrix: its values in the order declared, those that ``include`` adds last.

    ``weights`` has, for each entry of the job's ``weights``, its number among the sources in place and the part of the key
    that it depends on; None for a declared name.
    """

    job: str
    values: Mapping[str, Scalar]
    weights: tuple[tuple[int, str | None] | None, ...] = ()

    @property
    def address(self) -> Address:
        """``job.sweep["lr=1e-5,seed=1"]``."""
        return Address(Kind.JOB, self.job, key_of(self.values))

    @property
    def tree_key(self) -> str:
        """The name under which it stands among the jobs, once expanded."""
        return str(self.address).removeprefix("job.")


def key_of(values: Mapping[str, Scalar]) -> str:
    """``lr=1e-5,seed=1``: every value as it was written."""
    return ",".join(f"{name}={scalar_text(value)}" for name, value in values.items())


def expand_matrix(job: str, section: ManifestNode, report: Report) -> list[MatrixJob]:
    """The jobs that a matrix makes of one; none where it is wrong, which was reported or is for the types to say."""
    matrix = section.entries["matrix"]
    if matrix.value == {}:
        report(
            error(
                "matrix is empty",
                "Add lists of values by name, for example {seed: [1, 2, 3]}.",
                address=f"job.{job}",
                where=matrix.where,
                code="invalid-matrix",
            )
        )
    if not _is_well_formed(matrix):
        return []
    reader = _MatrixExpansion(job, matrix, _used(section), report)
    found = reader.combinations()
    if not found or reader.wrong:
        return []
    weights = section.entries.get("weights")
    items = weights.items if weights else []
    return [MatrixJob(job, values, tuple(_inline_weights(items, values))) for values in found]


def _is_well_formed(matrix: ManifestNode) -> bool:
    """Whether it has the form that the types ask for."""
    if not matrix.entries:
        return False
    lists = {name: node for name, node in matrix.entries.items() if name not in _OBJECTS}
    objects = [node for name in _OBJECTS if (node := matrix.entries.get(name))]
    return all(node.items and all(map(_scalar, node.items)) for node in lists.values()) and all(
        isinstance(node.value, list)
        and all(item.entries and all(map(_scalar, item.entries.values())) for item in node.items)
        for node in objects
    )


_OBJECTS = (_INCLUDE, _EXCLUDE)


def _scalar(node: ManifestNode) -> bool:
    return node.value is not None and not isinstance(node.value, dict | list)


def _used(section: ManifestNode) -> set[str]:
    """The names that the job refers to as ``matrix.NAME``."""
    return {
        reference.removeprefix("matrix.")
        for text in _texts(section)
        for match in PATTERN.finditer(text)
        if (reference := Expression.parse(match[1]).reference).startswith("matrix.")
    }


def _texts(node: ManifestNode) -> Iterator[str]:
    pending = [node]
    while pending:
        one = pending.pop()
        if isinstance(one.value, str):
            yield one.value
        pending += [*one.entries.values(), *one.items]


def _inline_weights(
    items: list[ManifestNode], values: Mapping[str, Scalar]
) -> Iterator[tuple[int, str | None] | None]:
    """What does not depend on the matrix has the same address in all its jobs, and so is one resource."""
    number = 0
    for item in items:
        text = item.value
        names = _used(item)
        if isinstance(text, str) and not is_source(text) and "${{" not in text:
            yield None
            continue
        own = {name: value for name, value in values.items() if name in names}
        yield number, key_of(own) if own else None
        number += 1


@dataclass
class _MatrixExpansion:
    """One matrix while it is read."""

    job: str
    node: ManifestNode
    used: Collection[str]
    report: Report
    wrong: bool = field(default=False, init=False)

    def combinations(self) -> list[Values]:
        """The product of the lists, less what is excluded, and with what is included."""
        lists = {
            name: [_value(item) for item in node.items]
            for name, node in self.node.entries.items()
            if name not in _OBJECTS
        }
        self._check_names(lists)
        self._check_lists(lists)
        included = self._objects(_INCLUDE)
        count = math.prod(map(len, lists.values())) + len(included)
        if count > MAX_COMBINATIONS:
            self._report_problem(
                f"matrix: too many combinations ({count})",
                f"A manifest can have at most {MAX_COMBINATIONS}.",
                self.node,
            )
        if self.wrong:
            return []
        product = itertools.product(*lists.values()) if lists else []
        originals = [dict(zip(lists, values, strict=True)) for values in product]
        originals = self._without_excluded(originals, lists)
        found = self._with_included(originals, included, lists)
        self._check_result(found)
        return found

    def _without_excluded(
        self, originals: list[Values], lists: Mapping[str, list[Scalar]]
    ) -> list[Values]:
        for at, node in enumerate(self._objects(_EXCLUDE)):
            excluded = _values(node)
            unknown = [name for name in excluded if name not in lists]
            for name in unknown:
                self._report_problem(
                    f"matrix.exclude[{at}]: the matrix has no list {name!r}",
                    did_you_mean(name, lists),
                    node.entries[name],
                )
            kept = [original for original in originals if not _contains(original, excluded)]
            if len(kept) == len(originals) and not unknown:
                self.report(
                    warning(
                        f"matrix.exclude[{at}] matches no combination",
                        f"No combination has {key_of(excluded)}.",
                        address=f"job.{self.job}",
                        where=node.where,
                        code="unused-exclude",
                    )
                )
            originals = kept
        return originals

    def _with_included(
        self,
        originals: list[Values],
        included: list[ManifestNode],
        lists: Mapping[str, list[Scalar]],
    ) -> list[Values]:
        added: list[Values] = [{} for _ in originals]
        alone: list[Values] = []
        for at, node in enumerate(included):
            values = _values(node)
            self._check_included(at, node, lists)
            own = {name: value for name, value in values.items() if name in lists}
            extra = {name: value for name, value in values.items() if name not in lists}
            fitting = [place for place, one in enumerate(originals) if _contains(one, own)]
            for place in fitting:
                added[place].update(extra)
            if not fitting:
                alone.append(values)
        return [
            *({**one, **more} for one, more in zip(originals, added, strict=True)),
            *(_in_declared_order(one, lists) for one in alone),
        ]

    def _check_included(
        self, at: int, node: ManifestNode, lists: Mapping[str, list[Scalar]]
    ) -> None:
        for name, value in node.entries.items():
            if name not in lists and name not in self.used:
                self._report_problem(
                    f"matrix.include[{at}]: the matrix has no list {name!r}",
                    f"{did_you_mean(name, lists)} To add a new name, use ${{{{ matrix.{name} }}}} in the job.".strip(),
                    value,
                )
            elif _NAME.fullmatch(name) is None:
                self._bad_name(name, value)

    def _check_names(self, lists: Mapping[str, list[Scalar]]) -> None:
        for name in lists:
            if _NAME.fullmatch(name) is None:
                self._bad_name(name, self.node.entries[name])

    def _check_lists(self, lists: Mapping[str, list[Scalar]]) -> None:
        for name in lists:
            seen: set[tuple[bool, Scalar]] = set()
            for item in self.node.entries[name].items:
                value = _value(item)
                if _comparable(value) in seen:
                    self._report_problem(
                        f"matrix.{name} lists {scalar_text(value)} twice",
                        "Remove the duplicate.",
                        item,
                    )
                seen.add(_comparable(value))

    def _check_result(self, found: list[Values]) -> None:
        if not found:
            self._report_problem(
                "matrix has no combinations",
                "Remove an 'exclude': they exclude all combinations.",
                self.node,
            )
        seen: set[str] = set()
        for values in found:
            key = key_of(values)
            if key in seen:
                self._report_problem(
                    f"matrix: duplicate combination {key}",
                    "Remove one of them, or add a value that differs.",
                    self.node,
                )
            if len(key) > _MAX_KEY:
                self._report_problem(
                    f"matrix: the name of a combination is too long ({len(key)} characters)",
                    f"Use at most {_MAX_KEY} characters: shorten names and values, for example with names of settings files.",
                    self.node,
                )
            seen.add(key)

    def _objects(self, name: str) -> list[ManifestNode]:
        node = self.node.entries.get(name)
        return node.items if node else []

    def _bad_name(self, name: str, node: ManifestNode) -> None:
        self._report_problem(
            f"matrix: invalid name {name!r}",
            "Use letters, digits, '_' and '-', starting with a letter or '_'.",
            node,
        )

    def _report_problem(self, summary: str, detail: str, node: ManifestNode) -> None:
        self.wrong = True
        address = f"job.{self.job}"
        self.report(
            error(summary, detail, address=address, where=node.where, code="invalid-matrix")
        )


def _values(node: ManifestNode) -> Values:
    return {name: _value(value) for name, value in node.entries.items()}


def _value(node: ManifestNode) -> Scalar:
    assert not isinstance(node.value, dict | list)  # noqa: S101 - looked at before
    return node.value


def _contains(values: Values, part: Values) -> bool:
    """Whether all values of a part are among the values."""
    return all(
        name in values and _comparable(values[name]) == _comparable(value)
        for name, value in part.items()
    )


def _comparable(value: Scalar) -> tuple[bool, Scalar]:
    """A value as it compares: true is not 1, and 1e-5 is 0.00001."""
    return isinstance(value, bool), value


def _in_declared_order(values: Values, lists: Collection[str]) -> Values:
    """In the order in which the lists are declared; names that have none stand last."""
    return {
        **{name: values[name] for name in lists if name in values},
        **{name: value for name, value in values.items() if name not in lists},
    }
