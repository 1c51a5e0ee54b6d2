"""Verifying the mirror with what upstream still has: where the bytes of a reference come from."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from trainctl.base.retry import Each
from trainctl.base.sharing import only_ours
from trainctl.errors import Interrupted, ManifestError, SourceDenied, SourceError, TrainctlError
from trainctl.model.address import Kind
from trainctl.model.source_uri import BUCKETS, parse_source
from trainctl.operations.workspace import Workspace
from trainctl.resources.weights import credential_of, endpoint_url, lock_entry, wanted_of
from trainctl.sources import source_for
from trainctl.spi.sources import Credential
from trainctl.weights.locked import locked_version
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.fetch import Progress
from trainctl.weights.mirror.layout import Reference, named_in
from trainctl.weights.mirror.port import Mirror, is_far, site_of
from trainctl.weights.mirror.verify import Verified
from trainctl.weights.resolve import asked


def verify_mirror(
    workspace: Workspace, *, repair: bool, progress: Progress | None = None
) -> Verified:
    """Hash the whole mirror; with ``repair`` what is wrong is fetched again where its source is unchanged, else removed."""
    mirror = workspace.declared_mirror
    origins = Origins(workspace) if _is_ours(mirror) else OriginsOfOthers(workspace)
    own = list(_own_references(workspace)) if repair else ()
    return mirror.verify(origins.of if repair else None, progress, own)


def _is_ours(mirror: Mirror) -> bool:
    """Whether what a mirror's records say is this user's own word: of a directory on this machine into which nobody else writes."""
    if mirror.path is None or is_far(mirror):
        return False
    return all(map(only_ours, (Path(mirror.path), Path(mirror.path, "references"))))


def _own_references(workspace: Workspace) -> Iterator[Mapping[str, object]]:
    """What the references say that this project's state knows of, where it can be told which server each is to."""
    state = workspace.ledger.state()
    projects = sorted(one.name for one in state.resources if one.kind is Kind.PROJECT)
    directory, here = workspace.setting.directory, site_of(workspace.mirror)
    for address, recorded in state.resources.items():
        listing = recorded.outputs.get("listing")
        if address.kind is not Kind.WEIGHTS or not listing or here.of(recorded.outputs) != here:
            continue
        wanted = wanted_of(recorded.attributes, directory)
        with contextlib.suppress(TrainctlError):
            credential = credential_of(recorded.attributes, workspace.secrets)
            server = source_for(wanted.uri.scheme).server(wanted.uri.text, credential)
            entry = lock_entry(recorded.attributes, directory)
            version = locked_version(wanted.uri.text, server, entry)
            who = (state.lineage, str(address), workspace.owner, ", ".join(projects))
            reference = Reference(*who, wanted.allow, wanted.ignore)
            record = reference.record({}, version, str(listing), time.time())
            yield {**record, "files": entry.files, "bytes": entry.bytes}


class Origins:
    """Resolves each source once, at the revision that was mirrored; a failure is remembered too."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._found: dict[tuple[str, str | None, str], Origin | TrainctlError] = {}

    def of(self, record: Mapping[str, object], halt: threading.Event) -> Origin:
        """See weights.mirror.afresh.Origins; each is asked for once."""
        key = named_in(record)
        if key not in self._found:
            try:
                self._found[key] = self._resolve(*key, self._workspace.retry.each(halt))
            except Interrupted:
                raise
            except TrainctlError as error:
                self._found[key] = error
        found = self._found[key]
        if isinstance(found, TrainctlError):
            raise found
        return found

    def declared(self) -> Iterator[Mapping[str, object]]:
        """The attributes of the weights that the manifest names."""
        try:
            resources = list(self._workspace.desired.resources.values())
        except ManifestError:
            return
        yield from (one.attributes for one in resources if one.address.kind is Kind.WEIGHTS)

    @cached_property
    def recorded(self) -> Sequence[Mapping[str, object]]:
        """The attributes of the weights that the project's state has, which the manifest may not name any more."""
        resources = self._workspace.ledger.state().resources
        return [one.attributes for at, one in resources.items() if at.kind is Kind.WEIGHTS]

    def _resolve(self, text: str, endpoint: str | None, revision: str, each: Each) -> Origin:
        uri = parse_source(text)
        source = source_for(uri.scheme)
        for credential in self._credentials(text, endpoint):
            if source.server(text, credential) == endpoint:
                pinned = revision if uri.scheme == "hf" else None
                resolved = asked(source, text, pinned, credential, each)
                return Origin(source, resolved, credential, self._workspace.retry)
        raise SourceError(
            f"{text} came from {endpoint or 'its own platform'}, and the environment names another server",
            "Set the variables that named it.",
        )

    def _credentials(self, text: str, endpoint: str | None) -> Iterator[Credential | None]:
        """What the manifest gives for the source, if it names it, or gave; what its platform usually finds; for a server that nobody here names, nothing."""
        for attributes in self._named_as(self.declared(), text, endpoint):
            yield credential_of(attributes, self._workspace.secrets)
        for attributes in self._named_as(self.recorded, text, endpoint):
            with contextlib.suppress(TrainctlError):  # its secret may have gone with it
                yield credential_of(attributes, self._workspace.secrets)
        yield credential_of({"source": text}, self._workspace.secrets)
        yield from _nobodys(text, endpoint)

    def _named_as(
        self, weights: Iterable[Mapping[str, object]], text: str, endpoint: str | None
    ) -> list[Mapping[str, object]]:
        """Those of that source, first those that name the server."""
        directory = self._workspace.setting.directory
        same = (one for one in weights if wanted_of(one, directory).uri.text == text)
        return sorted(same, key=lambda one: endpoint_url(one) != endpoint)


class OriginsOfOthers(Origins):
    """For a mirror that others write to, which says itself what it has references to: what neither this project's manifest nor its state
    names is not to be had from this machine's files, nor by this user's credentials."""

    def of(self, record: Mapping[str, object], halt: threading.Event) -> Origin:
        """See Origins; SourceDenied for files of this machine that are not ours."""
        if str(record.get("source")).startswith("file:") and not self._ours(record):
            raise SourceDenied(f"{record.get('source')!r} is not a source of this project")
        return super().of(record, halt)

    def _credentials(self, text: str, endpoint: str | None) -> Iterator[Credential | None]:
        if self._ours({"source": text}):
            yield from super()._credentials(text, endpoint)
            return
        yield None
        yield from _nobodys(text, endpoint)

    def _ours(self, record: Mapping[str, object]) -> bool:
        directory = self._workspace.setting.directory
        known = (*self.declared(), *self.recorded)
        sources = {wanted_of(one, directory).uri.text for one in known}
        return record.get("source") in sources


def _nobodys(text: str, endpoint: str | None) -> Iterator[Credential]:
    if endpoint is not None and parse_source(text).scheme in BUCKETS:
        yield Credential("", "nobody", endpoint)
