"""Opening a bucket with a credential as sources and mirrors have it: as text, perhaps with what makes a new one."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trainctl.objects.access import Access, access_of
from trainctl.objects.client import SILENCE_SECONDS
from trainctl.objects.place import Place
from trainctl.objects.store import Bucket
from trainctl.spi.sources import Credential


def opened(
    place: Place,
    credential: Credential | None,
    environ: Mapping[str, str] = os.environ,
    silence: float = SILENCE_SECONDS,
) -> Bucket:
    """The bucket; without a credential, or by an empty one, requests are not signed. SourceDenied for one that can't be read."""
    if credential is None or not credential.value:
        return Bucket(place, environ=environ, silence=silence)
    renew = credential.renew

    def renewed() -> Access:
        fresh = renew() if renew else credential
        return access_of(place.scheme, fresh.value, fresh.origin)

    return Bucket(
        place,
        access_of(place.scheme, credential.value, credential.origin),
        credential.origin,
        renew=renewed if renew else None,
        environ=environ,
        silence=silence,
    )
