"""A store in a directory of a host: what takes many requests, or much data, is done there by the node program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainctl.base.protocol.mirrors import (
    MIRROR_GC,
    MIRROR_INVENTORY,
    MIRROR_SIZE,
    MIRROR_VERIFY,
    GcRequest,
    VerifyRequest,
)  # fmt: skip
from trainctl.base.protocol.objects import InDirectory
from trainctl.base.protocol.verb import Answer, Request, Verb
from trainctl.errors import NodeForgot
from trainctl.remote.agent import NodeAgent
from trainctl.remote.objects import HostObjects
from trainctl.store import messages, references
from trainctl.store.gc import GcOptions, GcReport
from trainctl.store.inventory import Inventory
from trainctl.store.scan import Progress
from trainctl.store.verify import Finding, VerifyReport

Notify = Callable[[str], None]


class HostStore:
    """The operations of ``Store``; each may also raise NodeError.

    ``path`` is the directory on the host. ``agent`` returns what calls the host: with True, an agent that may install the
    node program there. ``notify`` gets what the host has to say to people.
    """

    def __init__(
        self, url: str, path: str, agent: Callable[[bool], NodeAgent], notify: Notify
    ) -> None:
        self.objects = HostObjects(url, path, agent)
        self._path = path
        self._directory = InDirectory(path=path)
        self._agent = agent
        self._notify = notify

    def inventory(self) -> Inventory:
        """See Store."""
        return messages.inventory_from_json(self._call(MIRROR_INVENTORY, self._directory))

    def stored_bytes(self) -> int:
        """See Store."""
        return self._call(MIRROR_SIZE, self._directory)["bytes"]

    def renew(self, lineage: str, address: str) -> None:
        """See Store."""
        references.renew(self.objects, lineage, address)

    def drop_reference(self, lineage: str, address: str) -> bool:
        """See Store."""
        try:
            return references.drop(self.objects, lineage, address)
        except NodeForgot:  # the reference is gone with the host
            return False

    def gc(self, options: GcOptions) -> GcReport:
        """See Store."""
        request: GcRequest = {
            "path": self._path,
            "dry_run": options.dry_run,
            "unused_seconds": options.unused_seconds,
        }
        return messages.gc_from_json(self._call(MIRROR_GC, request))

    def verify(self, repair: bool = False, progress: Progress | None = None) -> VerifyReport:
        """See Store."""
        findings: list[Finding] = []
        request: VerifyRequest = {"path": self._path, "repair": repair}
        hashed = self._call(
            MIRROR_VERIFY,
            request,
            progress,
            lambda row: findings.append(messages.finding_from_row(row)),
        )
        return VerifyReport(hashed["blobs"], hashed["bytes"], tuple(findings))

    def _call(
        self,
        verb: Verb[Request, Answer],
        request: Request,
        progress: Progress | None = None,
        take: Callable[[Any], None] = lambda row: None,
    ) -> Answer:
        def on_event(event: Mapping[str, Any]) -> None:
            if "rows" in event:
                for row in event["rows"]:
                    take(row)
            elif "say" in event:
                self._notify(event["say"])
            elif progress is not None:
                progress(event["done"], event["total"], event["files"])

        return self._agent(False).call(verb, request, on_event=on_event)
