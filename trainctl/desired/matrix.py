"""Combinations of a ``matrix``, as in GitHub Actions; see DESIGN.md."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.desired.expression import PATTERN, Expression
from trainctl.manifest.tree import ManifestNode, Scalar, scalar_text
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, did_you_mean, error
from trainctl.model.specs.weights import is_source

MAX_COMBINATIONS = 2000
"""Limit for all matrices of a manifest together."""
MAX_NODES = 1_000_000
"""Limit for the values of all jobs of matrices, so that a small file can't expand to a huge manifest."""

_NAME = compile_lazily(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_OBJECTS = _INCLUDE, _EXCLUDE = "include", "exclude"
_MAX_KEY = 500

Report = Callable[[Diagnostic], None]
Values = dict[str, Scalar]


@dataclass(frozen=True, slots=True)
class MatrixJob:
    """One job of a matrix; values are in the declared order, then ``include``.

    ``weights``: for each entry of the job's ``weights`` its number among the inline sources and the part of the key
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
        """Its key in the expanded ``jobs`` section."""
        return str(self.address).removeprefix("job.")


def key_of(values: Mapping[str, Scalar]) -> str:
    """Format as ``lr=1e-5,seed=1``, with values as written."""
    return ",".join(f"{name}={scalar_text(value)}" for name, value in values.items())


def expand_matrix(job: str, section: ManifestNode, report: Report) -> list[MatrixJob]:
    """Return the jobs of a matrix; none if it is invalid.

    Wrong types are not reported here but when types are checked.
    """
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
    expansion = _MatrixExpansion(job, matrix, _used_names(section), report)
    combinations = expansion.combinations()
    if expansion.invalid:
        return []
    weights = section.entries.get("weights")
    items = weights.items if weights else []
    return [
        MatrixJob(job, values, tuple(_inline_weights(items, values))) for values in combinations
    ]


def _is_well_formed(matrix: ManifestNode) -> bool:
    """Whether the types are valid."""
    if not matrix.entries:
        return False
    lists = {name: node for name, node in matrix.entries.items() if name not in _OBJECTS}
    objects = [node for name in _OBJECTS if (node := matrix.entries.get(name))]
    return all(node.items and all(map(_is_scalar, node.items)) for node in lists.values()) and all(
        isinstance(node.value, list)
        and all(item.entries and all(map(_is_scalar, item.entries.values())) for item in node.items)
        for node in objects
    )


def _is_scalar(node: ManifestNode) -> bool:
    return node.value is not None and not isinstance(node.value, dict | list)


def _used_names(section: ManifestNode) -> set[str]:
    """Return the names used as ``matrix.NAME``."""
    names: set[str] = set()
    pending = [section]
    while pending:
        node = pending.pop()
        pending += [*node.entries.values(), *node.items]
        for match in PATTERN.finditer(node.value) if isinstance(node.value, str) else ():
            reference = Expression.parse(match[1]).reference
            if reference.startswith("matrix."):
                names.add(reference.removeprefix("matrix."))
    return names


def _inline_weights(
    items: list[ManifestNode], values: Mapping[str, Scalar]
) -> Iterator[tuple[int, str | None] | None]:
    """Number inline weights; without matrix values they are shared by all jobs."""
    number = 0
    for item in items:
        text = item.value
        names = _used_names(item)
        if isinstance(text, str) and not is_source(text) and "${{" not in text:
            yield None
            continue
        own = {name: value for name, value in values.items() if name in names}
        yield number, key_of(own) if own else None
        number += 1


@dataclass
class _MatrixExpansion:
    """Expansion of one matrix; ``used`` are the names that the job refers to."""

    job: str
    node: ManifestNode
    used: Collection[str]
    report: Report
    invalid: bool = field(default=False, init=False)

    def combinations(self) -> list[Values]:
        """Return the product of the lists, without ``exclude``, with ``include``."""
        lists = {
            name: [_value(item) for item in node.items]
            for name, node in self.node.entries.items()
            if name not in _OBJECTS
        }
        for name in lists:
            if _NAME.fullmatch(name) is None:
                self._bad_name(name, self.node.entries[name])
        included = self._objects(_INCLUDE)
        count = math.prod(map(len, lists.values())) + len(included)
        if count > MAX_COMBINATIONS:
            self._report_problem(
                f"matrix: too many combinations ({count})",
                f"A manifest can have at most {MAX_COMBINATIONS}.",
                self.node,
            )
        if self.invalid:
            return []
        product = itertools.product(*lists.values()) if lists else []
        originals = [dict(zip(lists, values, strict=True)) for values in product]
        originals = self._without_excluded(originals, lists)
        combinations = self._with_included(originals, included, lists)
        self._check_result(combinations)
        return combinations

    def _without_excluded(
        self, originals: list[Values], lists: Mapping[str, list[Scalar]]
    ) -> list[Values]:
        for index, node in enumerate(self._objects(_EXCLUDE)):
            excluded = _values(node)
            for name in excluded.keys() - lists.keys():
                self._report_problem(
                    f"matrix.exclude[{index}]: the matrix has no list {name!r}",
                    did_you_mean(name, lists),
                    node.entries[name],
                )
            originals = [original for original in originals if not _contains(original, excluded)]
        return originals

    def _with_included(
        self,
        originals: list[Values],
        included: list[ManifestNode],
        lists: Mapping[str, list[Scalar]],
    ) -> list[Values]:
        added: list[Values] = [{} for _ in originals]
        alone: list[Values] = []
        for index, node in enumerate(included):
            values = _values(node)
            for name, value in node.entries.items():
                if name not in lists and name not in self.used:
                    self._report_problem(
                        f"matrix.include[{index}]: the matrix has no list {name!r}",
                        f"{did_you_mean(name, lists)} To add a new name, use ${{{{ matrix.{name} }}}} in the job.".strip(),
                        value,
                    )
                elif _NAME.fullmatch(name) is None:
                    self._bad_name(name, value)
            own = {name: value for name, value in values.items() if name in lists}
            extra = {name: value for name, value in values.items() if name not in lists}
            matches = [
                position for position, original in enumerate(originals) if _contains(original, own)
            ]
            for position in matches:
                added[position].update(extra)
            if not matches:
                alone.append(values)
        return [
            *({**original, **extra} for original, extra in zip(originals, added, strict=True)),
            *(
                {name: values[name] for name in lists if name in values} | values
                for values in alone
            ),
        ]

    def _check_result(self, combinations: list[Values]) -> None:
        if not combinations:
            self._report_problem(
                "matrix has no combinations",
                "Remove an 'exclude': they exclude all combinations.",
                self.node,
            )
        keys: set[str] = set()
        for values in combinations:
            key = key_of(values)
            if key in keys:
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
            keys.add(key)

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
        self.invalid = True
        address = f"job.{self.job}"
        self.report(
            error(summary, detail, address=address, where=node.where, code="invalid-matrix")
        )


def _values(node: ManifestNode) -> Values:
    return {name: _value(value) for name, value in node.entries.items()}


def _value(node: ManifestNode) -> Scalar:
    assert not isinstance(node.value, dict | list)  # noqa: S101 - checked in _is_well_formed
    return node.value


def _contains(values: Values, part: Values) -> bool:
    """Whether the values contain all values of a part."""
    return all(
        name in values and _comparable(values[name]) == _comparable(value)
        for name, value in part.items()
    )


def _comparable(value: Scalar) -> tuple[bool, Scalar]:
    """Return a key for comparison: true is not 1, but 1e-5 is 0.00001."""
    return isinstance(value, bool), value
