"""Certificates of servers on nodes: made here, as the node program can't, shown to nobody before, and known by their fingerprint."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_LIFE = dt.timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Certificate:
    """``certificate`` and ``key`` are PEM; ``fingerprint`` is the sha256 of the certificate's DER, in hex."""

    certificate: str
    key: str = field(repr=False)
    fingerprint: str


def new_certificate() -> Certificate:
    """A self-signed one with a P-256 key. It is valid a week before and after today, though who pins it doesn't look at clocks."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trainctl")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LIFE)
        .not_valid_after(now + _LIFE)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certificate(
        made.public_bytes(pem).decode(), secret.decode(), made.fingerprint(hashes.SHA256()).hex()
    )
