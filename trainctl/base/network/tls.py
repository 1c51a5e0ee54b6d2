"""TLS with trusted or pinned certificates."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import ssl
from contextlib import ExitStack, contextmanager
from typing import Iterator, Mapping, Optional

from trainctl.base.network.http_errors import PeerAuthError, UntrustedCertificate
from trainctl.errors import SourceError


def wrap_trusted(connection: socket.socket, context: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    """Wrap a connection to a trusted host; UntrustedCertificate otherwise."""
    try:
        return context.wrap_socket(connection, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise UntrustedCertificate(
            f"the certificate of {host} is not trusted ({error.verify_message})",
            "Set SSL_CERT_FILE to the certificates to trust.",
        ) from None


def wrap_pinned(connection: socket.socket, fingerprint: str, where: str) -> ssl.SSLSocket:
    """Wrap a connection to the holder of a certificate, whatever its issuer.

    ``fingerprint``: hex sha256 of its DER. PeerAuthError, naming ``where``, if the certificate is another.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    encrypted = context.wrap_socket(connection)
    certificate: Optional[bytes] = encrypted.getpeercert(binary_form=True)
    actual = hashlib.sha256(certificate or b"").hexdigest()
    if not hmac.compare_digest(actual, fingerprint):
        encrypted.close()
        raise PeerAuthError(where)
    return encrypted


def server_context(pem: Mapping[str, str]) -> ssl.SSLContext:
    """Return a server's context; the private key never reaches a disk."""
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    with ExitStack() as stack:
        paths = [stack.enter_context(_pipe_path(pem[name])) for name in ("certificate", "key")]
        context.load_cert_chain(*paths)
    return context


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


@contextmanager
def _pipe_path(text: str) -> Iterator[str]:
    """Yield a path of a pipe with a short text, as ``ssl`` takes paths only."""
    reading, writing = os.pipe()
    try:
        with os.fdopen(writing, "w") as stream:
            stream.write(text)
        yield f"/proc/self/fd/{reading}"
    finally:
        os.close(reading)


_CA_VARIABLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Trusted in addition to OpenSSL's own: SSL_CERT_FILE, SSL_CERT_DIR, the system's."""


def client_context() -> ssl.SSLContext:
    """Return a client's context; SourceError for invalid CA variables."""
    context = ssl.create_default_context()
    for name in _CA_VARIABLES:
        path = os.environ.get(name)
        if not path:
            continue
        try:
            if os.path.isdir(path):  # noqa: PTH112
                context.load_verify_locations(capath=path)
            else:
                context.load_verify_locations(cafile=path)
        except OSError as error:
            raise SourceError(
                f"cannot read certificates from {path}, set in {name} ({error.strerror or type(error).__name__})",
                "Set the variable to a file in PEM format or a directory of such files, or unset it.",
                code="untrusted-certificate",
            ) from None
    return context
