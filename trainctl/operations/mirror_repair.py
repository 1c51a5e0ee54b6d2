"""Verifying the mirror with what upstream still has: where the bytes of a reference come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainctl.errors import ManifestError, SourceDenied, TrainctlError
from trainctl.model.address import Kind
from trainctl.model.source_uri import parse_source
from trainctl.operations.workspace import Workspace
from trainctl.resources.weights import credential_of, wanted_of
from trainctl.spi.sources import Credential
from trainctl.weights.mirror.fetch import Progress
from trainctl.weights.mirror.mend import Origin
from trainctl.weights.mirror.verify import Verified
from trainctl.weights.sources import source_for


def verify_mirror(
    workspace: Workspace, *, repair: bool, progress: Progress | None = None
) -> Verified:
    """Hash the whole mirror; with ``repair`` what is wrong is fetched again where its source is unchanged, else removed."""
    mirror = workspace.declared_mirror
    elsewhere = mirror.on_a_host or mirror.in_a_bucket
    origins = OriginsOfOthers(workspace) if elsewhere else Origins(workspace)
    return mirror.verify(origins.of if repair else None, progress)


class Origins:
    """Resolves each source once, at the revision that was mirrored; a failure is remembered too."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._found: dict[tuple[str, str], Origin | TrainctlError] = {}

    def of(self, record: Mapping[str, object]) -> Origin:
        """Where the bytes of a reference come from. SourceError's kinds where upstream does not answer."""
        key = (str(record.get("source")), str(record.get("revision")))
        if key not in self._found:
            try:
                self._found[key] = self._resolve(*key)
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

    def _resolve(self, text: str, revision: str) -> Origin:
        uri = parse_source(text)
        source = source_for(uri.scheme)
        credential = self._credential(text)
        pinned = revision if uri.scheme == "hf" else None
        return Origin(
            source, source.resolve(text, pinned, credential), credential, self._workspace.retry
        )

    def _credential(self, text: str) -> Credential | None:
        """What the manifest gives for the source, if it names it; else what its platform usually finds."""
        secrets, directory = self._workspace.secrets, self._workspace.setting.directory
        same = (one for one in self.declared() if wanted_of(one, directory).uri.text == text)
        return credential_of(next(same, {"source": text}), secrets)


class OriginsOfOthers(Origins):
    """For a mirror that others write to, which says itself what it has references to: what this project doesn't declare is not to be
    had from this machine's files, nor by this user's credentials."""

    def of(self, record: Mapping[str, object]) -> Origin:
        """See Origins; SourceDenied for files of this machine that are not declared."""
        if str(record.get("source")).startswith("file:") and not self._ours(record):
            raise SourceDenied(f"{record.get('source')!a} is not a source of this project")
        return super().of(record)

    def _credential(self, text: str) -> Credential | None:
        return super()._credential(text) if self._ours({"source": text}) else None

    def _ours(self, record: Mapping[str, object]) -> bool:
        directory = self._workspace.setting.directory
        sources = {wanted_of(one, directory).uri.text for one in self.declared()}
        return record.get("source") in sources
