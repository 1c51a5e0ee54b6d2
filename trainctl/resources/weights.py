"""Copy the sources of weights into the mirror and reference them there."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainctl.apply.step import ApplyStep, MayStop
from trainctl.base.lazy_dataclass import replace
from trainctl.base.listing import ResolvedSource
from trainctl.base.retry import RetryPolicy
from trainctl.errors import (
    SourceError,
    SourceMismatch,
    SourceNotFound,
    StalePlan,
    TrainctlError,
)
from trainctl.ledger.state import Intent, Lookup, RecordedResource, origin_of
from trainctl.model.delivery import MirroringRecord
from trainctl.model.source_uri import BUCKETS, parse_source
from trainctl.model.specs.resource import WeightsSpec
from trainctl.plan.values import Observation
from trainctl.plan.weights import content_key
from trainctl.plugin_api.provider import ResourceStatus
from trainctl.resources.agents import Services
from trainctl.secrets.bucket_credentials import explaining_denials
from trainctl.secrets.resolver import SecretResolver
from trainctl.sources import source_for
from trainctl.store.references import Reference
from trainctl.weights.lock import (
    LockEntry,
    describe_difference,
    mirrored_version,
    version_from_lock,
)
from trainctl.weights.mirrors import SourceUpstream, is_remote, site_of
from trainctl.weights.resolution import SourceRequest, resolve, resolve_from_lock

if TYPE_CHECKING:
    from trainctl.plugin_api.sources import SourceCredential

_POLL_SECONDS = 0.2


class WeightsHandler:
    """Copies the sources of weights into the mirror and keeps a reference to each."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._mirror = services.mirror
        self._context = services.context
        self._guard = threading.Lock()
        self._content_locks: dict[str, threading.Lock] = {}

    def apply(self, step: ApplyStep) -> Mapping[str, Any]:
        """Copy missing files into the mirror, verified; an error names the file."""
        resolved = step.resolved
        uri = SourceRequest(step.weights_spec, self._context.directory).uri
        if resolved is None or not resolved.is_measured:
            resolved = self._resolve(step)
        elif uri.is_local:  # a plan may be applied in another checkout
            resolved = replace(resolved, source=uri.text)
        if step.weights_spec.pin not in (None, resolved.pin):
            raise self._source_changed(step, None, resolved)
        reference = Reference(
            lineage=self._context.lineage,
            address=_origin(step),
            owner=self._context.owner,
            project=self._context.project,
        )
        # One copy of the same files at a time, so that their bytes are counted once.
        with self._guard:
            lock = self._content_locks.setdefault(content_key(resolved), threading.Lock())
        while not lock.acquire(timeout=_POLL_SECONDS):
            step.stop_if_cancelled()
        try:
            return self._mirrored(step, resolved, reference)
        finally:
            lock.release()

    def _mirrored(
        self, step: ApplyStep, resolved: ResolvedSource, reference: Reference
    ) -> Mapping[str, Any]:
        store = self._mirror.store
        (before,) = store.survey([resolved]).sources
        # A complete source needs no credential.
        credential = (
            None if before.listing else credential_of(step.weights_spec, self._services.secrets)
        )
        source = source_for(parse_source(resolved.source).scheme)
        upstream = SourceUpstream(source, resolved, credential)
        start_time = time.monotonic()

        def report_wait(reason: str) -> None:
            step.progress(reason, 0, 0)
            step.spend_on_mirror(reason)

        try:
            with explaining_denials(credential):
                listing = store.ingest(
                    resolved,
                    upstream,
                    reference,
                    progress=lambda done, total, _files: step.progress("mirroring", done, total),
                    cancelled=step.cancelled,
                    waiting=report_wait,
                )
        except (SourceMismatch, SourceNotFound) as error:
            request = SourceRequest(step.weights_spec, self._context.directory)
            if request.uri.has_commits or request.weights.sha256:  # immutable
                raise
            with contextlib.suppress(SourceError):
                current = resolve(request, credential, cancelled=step.cancelled).resolved
                if current.pin != resolved.pin:
                    raise self._source_changed(step, resolved, current) from error
            raise
        version: dict[str, Any] = {
            "revision": resolved.revision,
            "pin": resolved.pin,
            "files": len(resolved.files),
            "bytes": resolved.size,
        }
        self._services.lock(
            lock_entry(replace(step.weights_spec, **version), self._context.directory)
        )
        return {
            **version,
            "listing": listing.id,
            **site_of(self._mirror).outputs,
            "fetched": MirroringRecord(
                bytes=before.missing,
                seconds=round(time.monotonic() - start_time, 3),
                bytes_through_client=upstream.bytes_read if is_remote(self._mirror) else 0,
            ).to_json(),
        }

    def _resolve(self, step: ApplyStep) -> ResolvedSource:
        """Resolve the source at its planned revision, if upstream has revisions."""
        directory, store = self._context.directory, self._mirror.store
        planned = lock_entry(step.weights_spec, directory) if step.weights_spec.pin else None
        request = SourceRequest(step.weights_spec, directory)
        try:
            credential = credential_of(step.weights_spec, self._services.secrets)
        except TrainctlError as error:
            return resolve_from_lock(request, error, locked=planned, store=store).resolved
        uri = request.uri
        if planned is not None and not (uri.has_commits or uri.is_local):
            endpoint = source_for(uri.scheme).custom_endpoint(uri.text, credential)
            version = version_from_lock(uri.text, endpoint, planned)
            mirrored = mirrored_version(store, version, planned)
            if mirrored is not None:
                return mirrored
            planned = None  # the caller compares the current version with the plan's pin
        with explaining_denials(credential):
            found = resolve(request, credential, locked=planned, cancelled=step.cancelled).resolved
            if found.is_measured:
                return found
            # Its server reports no size: read the file to its end, before it is read to be copied.
            (file,) = found.files

            def read() -> int:
                size = 0
                with source_for("https").open(found, file, 0, credential) as stream:
                    for data in stream:
                        step.stop_if_cancelled()
                        size += len(data)
                return size

            size = RetryPolicy().run(read, step.cancelled)
            return replace(found, files=(replace(file, size=size),))

    def _source_changed(
        self, step: ApplyStep, planned: ResolvedSource | None, current: ResolvedSource
    ) -> StalePlan:
        """Return the error; ``planned`` is None if the plan has too many files to list."""
        before = planned.revision if planned else step.weights_spec.revision
        lines = [f"It was at {before} and is now at {current.revision}."]
        if planned is not None:
            lines += describe_difference(planned.files, current.files)
        return StalePlan(
            f"{current.source} has changed since the plan was made",
            "\n".join([*lines, "Plan again."]),
            address=str(step.address),
        )

    def delete(self, step: ApplyStep) -> None:
        """Drop the reference; `mirror gc` deletes the files once unreferenced."""
        self._mirror.store.drop_reference(self._context.lineage, _origin(step))

    def undo(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        """Do nothing: the bytes stay in the mirror for later copies, until ``mirror gc``."""
        return {}

    def read(self, recorded: RecordedResource, lookup: Lookup) -> Observation:
        """Check that the mirror has the listing."""
        listing = recorded.outputs.get("listing")
        exists = bool(listing) and bool(self._mirror.store.survey(listings=[str(listing)]).listings)
        return Observation(ResourceStatus.PRESENT if exists else ResourceStatus.MISSING)


def credential_of(weights: WeightsSpec, secrets: SecretResolver) -> SourceCredential | None:
    """Return the declared credential, or the platform's default, or None."""
    scheme = weights.uri.scheme
    if scheme in BUCKETS:
        return secrets.bucket_credential(weights)
    declared = secrets.declared_credential(weights)
    if declared is not None or scheme != "hf":
        return declared
    # Slow to import.
    from trainctl.sources.hf import default_hub_credential

    return secrets.registered(default_hub_credential())


def lock_entry(weights: WeightsSpec, directory: Path) -> LockEntry:
    """Return the lock file entry of resolved weights, which have a revision and a pin."""
    version = (weights.revision or "", weights.pin or "", weights.files or 0, weights.bytes or 0)
    return SourceRequest(weights, directory).lock_entry(*version)


def _origin(step: ApplyStep) -> str:
    """Return the address of the reference in the mirror, which stays if the weights are renamed."""
    return str(origin_of(step.lookup, step.address))
