"""TLS between hosts that never met: who serves shows a certificate that its caller made, and who asks was told its fingerprint.

Loaded only where an address isn't private. See DESIGN.md, "Blobs over HTTP".
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import ssl
from contextlib import ExitStack, contextmanager
from typing import Iterator, Mapping, Optional

from trainctl.base.failure import Stranger


def pinned(connection: socket.socket, fingerprint: str, where: str) -> ssl.SSLSocket:
    """TLS to the holder of one certificate, whoever signed it, whatever its dates are: of those only clocks could judge. A Stranger is told nothing.

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
        raise Stranger(where)
    return encrypted


def server_context(made: Mapping[str, str]) -> ssl.SSLContext:
    """For a server that shows the ``certificate`` by its ``key``, both PEM. The key is written to no disk."""
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    with ExitStack() as stack:
        paths = [stack.enter_context(_read_once(made[name])) for name in ("certificate", "key")]
        context.load_cert_chain(*paths)
    return context


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


@contextmanager
def _read_once(text: str) -> Iterator[str]:
    """A path at which the text can be read, once: a pipe, as ``ssl`` takes names of files only. It is shorter than what a pipe holds."""
    reading, writing = os.pipe()
    try:
        with os.fdopen(writing, "w") as stream:
            stream.write(text)
        yield f"/proc/self/fd/{reading}"
    finally:
        os.close(reading)
