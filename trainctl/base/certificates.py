"""Whom to trust over TLS: the same for whatever is asked, sources, identities and tokens."""

from __future__ import annotations

import os
import ssl

from trainctl.errors import SourceError

_MORE = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Read by other programs; trusted beside what OpenSSL finds, in ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` or of the system."""


def trusting() -> ssl.SSLContext:
    """For clients. SourceError where a variable names what can't be read as certificates."""
    context = ssl.create_default_context()
    for name in _MORE:
        if place := os.environ.get(name):
            _trust(context, name, place)
    return context


def _trust(context: ssl.SSLContext, name: str, place: str) -> None:
    try:
        if os.path.isdir(place):  # noqa: PTH112  a Path would not say less
            context.load_verify_locations(capath=place)
        else:
            context.load_verify_locations(cafile=place)
    except OSError as error:
        raise SourceError(
            f"{name} names {place}, which can't be read as certificates ({error.strerror or type(error).__name__})",
            "Name a file in PEM format or a directory of them, or unset the variable.",
            code="untrusted-certificate",
        ) from None
