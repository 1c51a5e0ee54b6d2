"""One survey of the mirror for all that a plan needs of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainctl.base.listing import ResolvedSource
from trainctl.errors import NodeError, SourceInterrupted, SourceUnavailable, StorageError
from trainctl.ledger.state import State
from trainctl.model.address import Kind
from trainctl.model.delivery import SERVES_ALL, MirrorSite, ServingCapability
from trainctl.model.diagnostics import Diagnostic, warning
from trainctl.operations.workspace import Workspace
from trainctl.store.maintenance.survey import SourceSurvey
from trainctl.weights.mirrors import site_of

_TRANSIENT_CODES = (SourceUnavailable.default_code, SourceInterrupted.default_code)
"""Codes of a bucket that doesn't answer now."""


DAMAGED_REFERENCE = "Until it is repaired, mirror gc deletes nothing. The next apply of its project writes it again; if that project no longer exists, delete the reference."


@dataclass(frozen=True, slots=True)
class MirrorSurveyResult:
    """What is in it of the sources, in their order, and which of the recorded listings are there.

    Empty if it wasn't asked, or can't be, which ``problem`` says.
    """

    asked: bool = False
    sources: tuple[SourceSurvey, ...] = ()
    listings: frozenset[str] = frozenset()
    problem: Diagnostic | None = None
    serving: ServingCapability = SERVES_ALL
    """How the mirror's host hands weights to other nodes."""
    free: int | None = None
    warnings: tuple[Diagnostic, ...] = ()
    """Of what doesn't stop the plan."""
    unusable: str = ""
    """Why nothing can be brought there."""
    site: MirrorSite | None = None
    """Where it is; None where that can't be told."""


def survey_mirror(
    workspace: Workspace, state: State, sources: Sequence[ResolvedSource] = ()
) -> MirrorSurveyResult:
    """Ask, unless there is nothing to ask about."""
    listings = [
        str(resource.outputs["listing"])
        for resource in state.resources.values()
        if resource.address.kind is Kind.WEIGHTS and resource.outputs.get("listing")
    ]
    if not (sources or listings):
        return MirrorSurveyResult(asked=True)
    try:
        found = workspace.mirror.store.survey(sources, listings, state.lineage)
    except (NodeError, StorageError) as failure:
        if isinstance(failure, StorageError) and failure.code not in _TRANSIENT_CODES:
            raise
        summary = f"the mirror is unreachable: {failure.summary}"
        detail = f"{failure.detail} The plan uses the recorded contents of the mirror.".strip()
        return MirrorSurveyResult(asked=True, problem=warning(summary, detail, code=failure.code))
    return MirrorSurveyResult(
        True,
        found.sources,
        found.listings,
        serving=workspace.mirror.serving,
        free=found.free,
        warnings=tuple(
            warning(one, DAMAGED_REFERENCE, code="mirror-corrupt") for one in found.damaged
        ),
        unusable=found.unusable,
        site=site_of(workspace.mirror),
    )
