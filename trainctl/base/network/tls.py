"""TLS: the certificates that clients trust, and hosts that were never introduced, which show a certificate made by their caller."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import ssl
from contextlib import ExitStack, contextmanager
from typing import Iterator, Mapping, Optional

from trainctl.base.failure import PeerAuthError
from trainctl.base.http.errors import UntrustedCertificate
from trainctl.errors import SourceError


def wrap_trusted(connection: socket.socket, context: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    """TLS to a host whose certificate the context trusts; UntrustedCertificate otherwise."""
    try:
        return context.wrap_socket(connection, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise UntrustedCertificate(
            f"the certificate of {host} is not trusted ({error.verify_message})",
            "Name the certificates to trust in SSL_CERT_FILE.",
        ) from None


def wrap_pinned(connection: socket.socket, fingerprint: str, where: str) -> ssl.SSLSocket:
    """TLS to the holder of one certificate, regardless of its issuer and dates. Stranger if it is another.

    ``fingerprint`` is the sha256 of its DER, in hex. Whoever shows it has signed the handshake with its key.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    encrypted = context.wrap_socket(connection)
    shown: Optional[bytes] = encrypted.getpeercert(binary_form=True)
    found = hashlib.sha256(shown or b"").hexdigest()
    if not hmac.compare_digest(found, fingerprint):
        encrypted.close()
        raise PeerAuthError(where)
    return encrypted


def server_context(made: Mapping[str, str]) -> ssl.SSLContext:
    """For a server that shows the ``certificate`` by its ``key``, both PEM. The key is written to no disk."""
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    with ExitStack() as stack:
        paths = [stack.enter_context(_pipe_path(made[name])) for name in ("certificate", "key")]
        context.load_cert_chain(*paths)
    return context


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


@contextmanager
def _pipe_path(text: str) -> Iterator[str]:
    """A path at which the text can be read, once: a pipe, as ``ssl`` takes names of files only. It is shorter than what a pipe holds."""
    reading, writing = os.pipe()
    try:
        with os.fdopen(writing, "w") as stream:
            stream.write(text)
        yield f"/proc/self/fd/{reading}"
    finally:
        os.close(reading)


_CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Read by other programs; trusted beside what OpenSSL finds, in ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` or of the system."""


def client_context() -> ssl.SSLContext:
    """For clients. SourceError where a variable names what can't be read as certificates."""
    context = ssl.create_default_context()
    for name in _CA_VARIABLES:
        if place := os.environ.get(name):
            _load_certificates(context, name, place)
    return context


def _load_certificates(context: ssl.SSLContext, name: str, place: str) -> None:
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
