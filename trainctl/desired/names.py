"""Which names a manifest declares, and which one is meant where none is said."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from trainctl.manifest.check import key_position
from trainctl.manifest.messages import address_of, path_text
from trainctl.manifest.suggestions import did_you_mean
from trainctl.manifest.tree import ManifestNode, Path, position_of
from trainctl.model.diagnostics import Diagnostic, Position, error


@dataclass(frozen=True, slots=True)
class DeclaredNames:
    """Declared names by section (of what is wrong, too), and the problems with names that are not declared.

    ``root`` is the tree that the manifest was made from, ``text`` the one before what is wrong was taken out.
    """

    root: ManifestNode
    text: ManifestNode
    projects: Collection[str]
    clusters: Collection[str]
    weights: Collection[str]
    secrets: Collection[str]
    jobs: Collection[str]
    told: Collection[Position | None] = ()
    """Places of which a problem was told already: nothing more is said of them."""
    problems: list[Diagnostic] = field(default_factory=list)

    def place(self, path: Path) -> Position:
        """Where the value at a path stands."""
        return position_of(self.root, path)

    def report_problem(
        self, summary: str, detail: str, path: Path, *, code: str, at_key: bool = False
    ) -> None:
        """Add a problem with what stands at a path, or with the key it has."""
        where = key_position(self.root, path) if at_key else self.place(path)
        if where not in self.told:
            self.problems.append(
                error(summary, detail, address=address_of(path), where=where, code=code)
            )

    def known(self, kind: str, name: str, path: Path) -> bool:
        """Whether a name is declared; a problem if not."""
        declared: Collection[str] = getattr(self, _SECTIONS[kind])
        if name in declared:
            return True
        hint = did_you_mean(name, declared)
        self.report_problem(
            f"{path_text(path[:-1] if isinstance(path[-1], int) else path)}: undeclared {kind} {name!r}",
            f"Declare it under {_SECTIONS[kind]!r}. {hint}".strip(),
            path,
            code="undeclared-name",
        )
        return False

    def chosen(self, kind: str, name: str | None, path: Path) -> str:
        """The name given, or the only one there is; a problem where that is unclear."""
        declared: Collection[str] = getattr(self, _SECTIONS[kind])
        if name is not None:
            self.known(kind, name, path)
            return name
        if len(declared) == 1:
            return next(iter(declared))
        if not self._given(path):
            self.report_problem(
                f"{path_text(path)} is missing",
                f"Set it to one of the {_SECTIONS[kind]}: {', '.join(sorted(declared)[:10])}.",
                path,
                code="ambiguous-default",
            )
        return ""

    def _given(self, path: Path) -> bool:
        """Whether the text says something there; that it is wrong was told before."""
        node: ManifestNode | None = self.text
        for step in path:
            node = node.entries.get(str(step)) if node else None
        return node is not None


_SECTIONS: Mapping[str, str] = {
    "project": "projects",
    "cluster": "clusters",
    "weights": "weights",
    "secret": "secrets",
    "job": "jobs",
}
