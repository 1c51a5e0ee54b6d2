"""Secret values in places that are kept or shown: found while planning, so that nothing is ever written that holds one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice

from trainctl.base.listing import ResolvedSource
from trainctl.model.address import Address
from trainctl.model.diagnostics import Diagnostic, error
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import WeightsFacts


def leaks(workspace: Workspace, weights: Mapping[Address, WeightsFacts]) -> Iterator[Diagnostic]:
    """An error for each resource whose attributes, or whose upstream file names, hold the value of a known secret.

    State, plan files and listings must keep both as they are, so masking them is no way out.
    """
    redact = workspace.setting.redactor.redact
    for address, resource in workspace.desired.resources.items():
        text = json.dumps([str(address), dict(resource.attributes)], ensure_ascii=False)
        if redact(text) != text:
            yield error(
                "the value of a secret stands in the manifest",
                "Refer to it instead: `environment_variables: {NAME: {secret: …}}`, or `auth` for a source. "
                "If it only looks like one, give the secret another value.",
                address=redact(str(address)),
                where=resource.where,
                code="secret-in-manifest",
            )
        facts = weights.get(address)
        if (
            facts
            and facts.resolved
            and any(redact(name) != name for name in _names(facts.resolved))
        ):
            yield error(
                "upstream names a file with the value of a secret",
                "Leave it out with ignore_patterns, and change the secret: upstream shows it.",
                address=str(address),
                where=resource.where,
                code="secret-in-file-name",
            )


def _names(resolved: ResolvedSource) -> Iterator[str]:
    """Some hundreds at once: there may be millions."""
    yield resolved.revision
    paths = (file.path for file in resolved.files)
    while some := "\n".join(islice(paths, 1000)):
        yield some
