"""Expansion of all expressions and matrices in the tree of a manifest."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from trainctl.base.lazy_dataclass import replace
from trainctl.desired.expression import (
    OPEN,
    PATTERN,
    Expression,
    ExpressionScope,
    InvalidExpression,
    refusal,
)
from trainctl.desired.matrix import MAX_COMBINATIONS, MAX_NODES, MatrixJob, expand_matrix
from trainctl.manifest.check import address_of, path_text
from trainctl.manifest.tree import (
    ManifestNode,
    Path,
    Scalar,
    list_node,
    mapping_node,
    scalar_node,
    scalar_text,
)
from trainctl.model.diagnostics import Diagnostic, Severity, error
from trainctl.model.specs.checks import InvalidMount, normalize_mount
from trainctl.model.specs.weights import default_mount

_MAX_TEXT = 16 * 2**20
_NAMES = (
    "Use letters, digits, '.', '_' and '-'; to create a job for each combination, use 'matrix'."
)
_COMMANDS = {("runtime", "start_commands"), ("runtime", "cache_config", "prepare_commands")}
_TEXT = frozenset({"environment_variables", "labels"})


class Expander:
    """Expands one manifest, adding to ``problems``.

    ``instances`` has the jobs of matrices by their keys in the expanded tree.
    """

    def __init__(
        self, variables: dict[str, Scalar], directory_name: str | None, problems: list[Diagnostic]
    ) -> None:
        """``directory_name`` is that of the only project; None if there are several."""
        self._variables = variables
        self._directory_name = directory_name
        self._problems = problems
        self._text = 0
        self._nodes = 0
        self.instances: dict[str, MatrixJob] = {}

    def manifest(self, root: ManifestNode) -> ManifestNode:
        """Expand all sections, first those that others refer to."""
        only_variables = ExpressionScope(self._variables)
        expanded: dict[str, ManifestNode] = {}
        for name in ("project", "projects"):
            if name in root.entries:
                expanded[name] = self._node(root.entries[name], (name,), only_variables)
        if "vars" in root.entries:
            expanded["vars"] = root.entries["vars"]
            for name, entry in root.entries["vars"].entries.items():
                if isinstance(entry.value, str) and OPEN in entry.value:
                    self._report_problem(
                        ("vars", name),
                        entry,
                        "a variable can't refer to another variable",
                        "Use a literal value.",
                        code="unknown-reference",
                    )
        scope = ExpressionScope(self._variables, self._only_project(expanded))
        for name, section in root.entries.items():
            if name not in expanded and name != "jobs":
                expanded[name] = self._node(section, (name,), scope)
        if "jobs" in root.entries:
            expanded["jobs"] = self._jobs(root.entries["jobs"], scope, expanded.get("weights"))
        return mapping_node({name: expanded[name] for name in root.entries}, root.keys, root.where)

    def _only_project(self, expanded: dict[str, ManifestNode]) -> str | None:
        several = expanded["projects"].entries if "projects" in expanded else {}
        if len(several) > 1 or self._directory_name is None:
            return None
        default, project = next(
            iter(several.items()), (self._directory_name, expanded.get("project"))
        )
        name = project.entries.get("name") if project else None
        return name.value if name and isinstance(name.value, str) else default

    def _jobs(
        self, section: ManifestNode, scope: ExpressionScope, weights: ManifestNode | None
    ) -> ManifestNode:
        declared = weights.entries if weights else {}
        entries: dict[str, ManifestNode] = {}
        keys = dict(section.keys)
        for name, job in section.entries.items():
            if "[" in name:  # reserved for the jobs of a matrix
                self._problems.append(
                    error(
                        f"invalid job name {name!r}",
                        _NAMES,
                        where=section.key_position(name),
                        code="invalid-name",
                    )
                )
            elif "matrix" not in job.entries or job.entries["matrix"].value is None:
                entries[name] = self._job(name, job, scope, declared)
            else:
                jobs = self._sweep(name, job, scope, declared)
                entries.update(jobs)
                keys.update(dict.fromkeys(jobs, section.key_position(name)))
        return mapping_node(entries, keys, section.where) if entries else section

    def _sweep(
        self,
        name: str,
        job: ManifestNode,
        scope: ExpressionScope,
        declared: dict[str, ManifestNode],
    ) -> dict[str, ManifestNode]:
        """Return the jobs of a matrix; if it has wrong types, a job with only the matrix."""
        matrix = self._node(
            job.entries["matrix"], ("jobs", name, "matrix"), replace(scope, job=name)
        )
        body = {key: entry for key, entry in job.entries.items() if key != "matrix"}
        section = mapping_node({**body, "matrix": matrix}, job.keys, job.where)
        before = len(self._problems)
        jobs = expand_matrix(name, section, self._problems.append)
        bare = mapping_node(body, job.keys, job.where)
        self._nodes += bare.size * len(jobs)
        if len(self.instances) + len(jobs) > MAX_COMBINATIONS or self._nodes > MAX_NODES:
            self._report_problem(
                ("jobs", name, "matrix"),
                matrix,
                "the matrices make the manifest too large",
                f"All matrices together can have {MAX_COMBINATIONS} combinations, and {MAX_NODES} values in their jobs.",
                code="invalid-matrix",
            )
            jobs = []
        if not jobs:
            new_problems = self._problems[before:]
            reported = any(problem.severity is Severity.ERROR for problem in new_problems)
            commands = list_node([scalar_node("true", job.where)], job.where)
            runtime = mapping_node({"start_commands": commands}, {}, job.where)
            only = mapping_node({"matrix": matrix, "runtime": runtime}, job.keys, job.where)
            return {} if reported else {name: only}
        self.instances.update({instance.tree_key: instance for instance in jobs})
        return {
            instance.tree_key: self._job(name, bare, scope, declared, instance.values)
            for instance in jobs
        }

    def _job(
        self,
        name: str,
        job: ManifestNode,
        outer: ExpressionScope,
        declared: dict[str, ManifestNode],
        matrix: Mapping[str, Scalar] | None = None,
    ) -> ManifestNode:
        project = job.entries.get("project")
        listed = job.entries.get("weights")
        scope = ExpressionScope(
            self._variables,
            project.value if project and isinstance(project.value, str) else outer.project,
            name,
            matrix,
            _paths(listed, ExpressionScope(self._variables, matrix=matrix), declared),
            declared,
        )
        return self._node(job, ("jobs", name), scope)

    def _node(self, node: ManifestNode, path: Path, scope: ExpressionScope) -> ManifestNode:
        if isinstance(node.value, dict):
            changed: dict[str, ManifestNode] = {}
            for key, entry in node.value.items():
                value = entry.value
                if OPEN in value if isinstance(value, str) else isinstance(value, dict | list):
                    expanded = self._node(entry, (*path, key), scope)
                    if expanded is not entry:
                        changed[key] = expanded
            return (
                mapping_node({**node.value, **changed}, node.keys, node.where) if changed else node
            )
        if isinstance(node.value, list):
            items = [self._node(item, (*path, at), scope) for at, item in enumerate(node.value)]
            if all(new is old for new, old in zip(items, node.value, strict=True)):
                return node
            return list_node(items, node.where)
        if isinstance(node.value, str) and OPEN in node.value:
            return scalar_node(self._expand(node, node.value, path, scope), node.where)
        return node

    def _expand(self, node: ManifestNode, text: str, path: Path, scope: ExpressionScope) -> Scalar:
        if text.count(OPEN) != len(PATTERN.findall(text)):
            self._report_problem(
                path,
                node,
                "'${{' without '}}'",
                "Close the expression.",
                code="unclosed-expression",
            )
            return text
        try:
            if path[0] == "jobs" and path[2:-1] in _COMMANDS:
                result: Scalar = command_text(text, scope)
            else:
                result = _value(text, scope, keep_type=_TEXT.isdisjoint(path))
        except InvalidExpression as why:
            self._report_problem(path, node, str(why), why.detail, code=why.code)
            return text
        if isinstance(result, str):
            self._text += len(result)
            if self._text > _MAX_TEXT:
                self._report_problem(
                    path,
                    node,
                    "the expanded text is larger than 16 MiB",
                    "Insert less text.",
                    code="file-too-large",
                )
                return text
        return result

    def _report_problem(
        self, path: Path, node: ManifestNode, summary: str, detail: str, *, code: str
    ) -> None:
        self._problems.append(
            error(
                f"{path_text(path)}: {summary}",
                detail,
                address=address_of(path),
                where=node.where,
                code=code,
            )
        )


def _value(text: str, scope: ExpressionScope, *, keep_type: bool) -> Scalar:
    match = PATTERN.fullmatch(text.strip())
    if match is not None and match[0].count(OPEN) == 1 and keep_type:
        return _plain(match[1], scope)
    return _substitute(text, lambda inner, _: scalar_text(_plain(inner, scope)))


def _plain(inner: str, scope: ExpressionScope) -> Scalar:
    expression = Expression.parse(inner)
    if expression.raw:
        raise InvalidExpression(
            "raw(…) is only supported in start_commands and prepare_commands",
            "Remove raw(…): other values are not quoted.",
            code="raw-outside-command",
        )
    return expression.value(scope)


def command_text(text: str, scope: ExpressionScope) -> str:
    """Expand a command, with each expression as one quoted word.

    Raises InvalidExpression where a quoted word can't be inserted.
    """
    command = ""

    def word(inner: str, before: str) -> str:
        nonlocal command
        command += before
        expression = Expression.parse(inner)
        value = scalar_text(expression.value(scope))
        if expression.raw:
            command += value
            return value
        why = refusal(command)
        if why is not None:
            raise InvalidExpression(
                f"${{{{ {expression.reference} }}}} can't be used {why}",
                f"Values are quoted as one word: move the expression outside of the quotes, or set it in environment_variables and use $NAME. To insert the value unquoted, use raw({expression.reference}).",
                code="quoted-expression",
            )
        command += "x"
        return shlex.quote(value)

    return _substitute(text, word)


def _substitute(text: str, replace: Callable[[str, str], str]) -> str:
    """Replace each expression; ``replace`` gets its inner and the preceding text."""
    parts: list[str] = []
    at = 0
    for match in PATTERN.finditer(text):
        before = text[at : match.start()]
        parts += [before, replace(match[1], before)]
        at = match.end()
    return "".join([*parts, text[at:]])


def _paths(
    listed: ManifestNode | None, scope: ExpressionScope, declared: dict[str, ManifestNode]
) -> dict[str, str]:
    paths: dict[str, str] = {}
    for item in listed.items if listed else []:
        name = item.value
        if isinstance(name, str) and OPEN in name:
            try:
                name = _value(name, scope, keep_type=True)
            except InvalidExpression:
                continue
        if isinstance(name, str) and name in declared:
            paths[name] = _path(declared[name])
    return paths


def _path(weights: ManifestNode) -> str:
    """Return the path of declared weights; empty if the declaration is invalid."""
    source: object = weights.value
    if weights.entries:
        mount = weights.entries.get("mount_location")
        if mount is not None and isinstance(mount.value, str):
            try:
                return normalize_mount(mount.value)
            except InvalidMount:
                return ""
        source = weights.entries["source"].value if "source" in weights.entries else None
    try:
        return default_mount(source) if isinstance(source, str) else ""
    except ValueError:
        return ""
