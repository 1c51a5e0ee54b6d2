"""Resources that were renamed, removed, or exist already."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainctl.manifest.types.base import ManifestSection
from trainctl.model.address import Address
from trainctl.model.specs.checks import Text, check, validation_error


def _address(text: str) -> str:
    try:
        return str(Address.parse(text))
    except ValueError as error:
        raise validation_error(
            str(error), "For example: job.sft.", code="invalid-address"
        ) from None


AddressText = Annotated[str, check(_address, minLength=1)]


class MovedResource(ManifestSection):
    """A renamed resource; it keeps its runs, checkpoints and caches."""

    before: AddressText = Field(alias="from")
    """Old address, for example ``job.sft``; it must not be declared any more."""
    to: AddressText
    """New address, of the same kind: project, weights, cache or job."""


class RemovedResource(ManifestSection):
    """A resource that is no longer declared."""

    before: AddressText = Field(alias="from")
    """Its address, for example ``cluster.lab``."""
    destroy: bool = True
    """Destroy it; ``false`` removes it from the state only."""


class ImportedRun(ManifestSection):
    """An existing run to record in the state, unless its job is there."""

    to: AddressText
    """Address of a declared job."""
    id: Text
    """``CLUSTER/NODE/RUN``: the first node, and the ID of the run or the name of its directory."""
