"""A certificate authority of the tests' own, and what it vouches for: 127.0.0.1 and localhost."""

from __future__ import annotations

import functools
import shutil
import ssl
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cleanup import AT_END

_NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]


@dataclass(frozen=True)
class CertificateAuthority:
    """``certificates`` is what a client must trust, ``server`` a server's side of TLS."""

    certificates: Path
    server: ssl.SSLContext


@functools.cache
def authority() -> CertificateAuthority:
    """The one of this process, made with the openssl program; the test is skipped where there is none."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl program to make certificates with")
    directory = Path(tempfile.mkdtemp(prefix="trainctl-authority-"))
    AT_END.callback(shutil.rmtree, directory, ignore_errors=True)
    root, root_key = directory / "root.pem", directory / "root-key.pem"
    leaf, leaf_key = directory / "leaf.pem", directory / "leaf-key.pem"
    _openssl("-subj", "/CN=test root", "-keyout", root_key, "-out", root)
    _openssl(
        "-CA", root, "-CAkey", root_key, "-subj", "/CN=test server",
        "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
        "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", leaf_key, "-out", leaf,
    )  # fmt: skip
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(leaf, leaf_key)
    return CertificateAuthority(root, server)


def issue_certificate(*names: str) -> tuple[Path, Path]:
    directory = authority().certificates.parent
    leaf, key = directory / "names.pem", directory / "names-key.pem"
    _openssl(
        "-CA", directory / "root.pem", "-CAkey", directory / "root-key.pem", "-subj", "/CN=names",
        "-addext", f"subjectAltName={','.join(f'DNS:{name}' for name in names)}",
        "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", leaf,
    )  # fmt: skip
    return leaf, key


def _openssl(*arguments: str | Path) -> None:
    command = ["openssl", "req", "-x509", *_NEW_KEY, *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True)
