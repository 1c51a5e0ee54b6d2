"""The states of several projects: those this user has changed, or all below a prefix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from trainctl.base.parallel import each
from trainctl.desired.values import DesiredState
from trainctl.errors import StateMoved, TrainctlError
from trainctl.manifest.files import manifest_files
from trainctl.operations.directories import used_states
from trainctl.operations.workspace import Workspace

_AT_ONCE = 8
T = TypeVar("T")


def query_states(
    workspace: Workspace, query: Callable[[Workspace], T]
) -> dict[str, T | TrainctlError]:
    """Query every state below ``--state``; without it, those that this user has changed.

    Returns results and errors by URL, without states that moved. A state is opened with the
    manifest that this user changed it with, else with the credentials of this one.
    """
    settings = workspace.settings
    known = used_states(settings.environ)
    if settings.state_url:
        urls = workspace.list_states(settings.state_url)
    else:
        if manifest_files(settings.directory):
            known = {workspace.ledger.url: str(settings.directory), **known}
        urls = list(known)

    declared, secrets = workspace.state_access

    def of_state(url: str) -> T | TrainctlError:
        directory, desired = Path(known.get(url, "")), None
        if url not in known or not directory.is_dir():
            directory = settings.directory
            desired = DesiredState(directory, {}, secrets.specs, state=declared)
        at = replace(
            settings,
            directory=directory,
            state_url=url,
            environment=None,
            variables={},
            var_files=(),
        )
        try:
            with Workspace(at, desired, workspace.notify) as opened:
                return query(opened)
        except TrainctlError as problem:
            return problem

    replies = zip(urls, each(of_state, urls, _AT_ONCE), strict=True)
    return {url: reply for url, reply in replies if not isinstance(reply, StateMoved)}
