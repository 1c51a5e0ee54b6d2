"""Sources that hold the mirror, or lie in it: whatever is mirrored would change them, so that no plan ever comes to rest."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainctl.base.listing import SourceFile
from trainctl.errors import SourceError
from trainctl.model.address import Kind
from trainctl.model.diagnostics import Diagnostic, error
from trainctl.objects.location import SCHEMES, location_of
from trainctl.operations.mirrors import is_in_a_bucket, is_on_a_host, mirror_url
from trainctl.operations.places import directory_of
from trainctl.operations.workspace import Workspace
from trainctl.resources.weights import wanted_of
from trainctl.store import keys
from trainctl.weights.patterns import select
from trainctl.weights.resolve import Wanted

_HEX = "0123456789abcdef" * 4
_KEYS = (
    keys.blob(_HEX),
    keys.chunked(_HEX),
    keys.slices(_HEX),
    keys.listing(_HEX),
    keys.incomplete(_HEX),
    keys.packs(_HEX),
    f"{keys.RECORDS}/{_HEX}/{_HEX}.json",
    f"{keys.PARTIAL}/{_HEX}/pack.{_HEX}",
    keys.reference("lineage", "weights.name"),
    keys.GC_LEASE,
)
"""An example of each kind of object in a mirror, to test whether patterns leave all of them out."""


@dataclass(frozen=True, slots=True)
class _Spot:
    """A directory or a prefix: what it is in, and the way to it from there."""

    owner: tuple[str | None, ...]
    path: tuple[str, ...]

    def way_to(self, other: _Spot) -> str | None:
        """The name below this of what lies in it, empty for this itself; None for what doesn't."""
        inside = self.owner == other.owner and other.path[: len(self.path)] == self.path
        return "/".join(other.path[len(self.path) :]) if inside else None


def entangled(workspace: Workspace) -> Iterator[Diagnostic]:
    """An error for each of them that the manifest names. Asks nobody."""
    desired, setting = workspace.desired, workspace.setting
    url = mirror_url(desired, workspace.provider, setting.environ)
    mirror = _mirror(url, desired.mirror.endpoint_url, setting.environ)
    for address, resource in desired.resources.items():
        if mirror is None or address.kind is not Kind.WEIGHTS:
            continue
        wanted = wanted_of(resource.weights_spec, setting.directory)
        told = _problem(wanted, mirror, setting.environ)
        if told is not None:
            yield error(
                f"{wanted.source} {told[0]} {url}, which would change it whenever it is mirrored",
                f"{told[1]}ame another place in mirror: {{url: …}}.",
                address=str(address),
                where=resource.where,
                code="mirror-in-source",
            )


def _problem(wanted: Wanted, mirror: _Spot, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """How they are in each other, and the beginning of what to do; None where they aren't, or the source's patterns see to it."""
    source = _source(wanted, environ)
    if source is None:
        return None
    if mirror.way_to(source) is not None:
        return "lies in the mirror", "N"
    way = source.way_to(mirror)
    if way is None:
        return None
    files = [SourceFile(f"{way}/{key}", 0, "") for key in _KEYS]
    if not select(files, wanted.allow, wanted.ignore)[0]:
        return None
    return "holds the mirror", f"Leave it out by ignore_patterns: [{json.dumps(f'/{way}/')}], or n"


def _mirror(url: str, endpoint: str | None, environ: Mapping[str, str]) -> _Spot | None:
    if is_on_a_host(url):
        return None
    return (
        _bucket(url, endpoint, environ)
        if is_in_a_bucket(url)
        else _directory(directory_of(url, "mirror"))
    )


def _source(wanted: Wanted, environ: Mapping[str, str]) -> _Spot | None:
    """None for what can't be in a mirror, and what is told of as an error where it is resolved."""
    try:
        uri = wanted.uri
    except SourceError:
        return None
    if uri.scheme == "file":
        return _directory(Path(uri.location))
    return _bucket(uri.text, wanted.endpoint_url, environ) if uri.scheme in SCHEMES else None


def _directory(path: Path) -> _Spot:
    return _Spot(("file",), Path(os.path.realpath(path)).parts)


def _bucket(url: str, endpoint: str | None, environ: Mapping[str, str]) -> _Spot | None:
    """Of Amazon's it is the same bucket in whatever region."""
    try:
        place = location_of(url, endpoint, environ)
    except SourceError:
        return None
    server = place.endpoint if place.endpoint and not place.is_own(place.endpoint) else None
    return _Spot(
        (place.scheme, server, place.account, place.bucket),
        tuple(filter(None, place.prefix.split("/"))),
    )
