"""Google's and Azure's storage on this machine: gcp-storage-emulator, and azurite, which checks signatures."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

import pytest

from tests.support.install_cache import install_once
from tests.support.servers.buckets import served_by

AZURITE = "3.35.0"
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Of the account that azurite has; its manual names it."""


@dataclass
class AzureAccount:
    """A storage account of azurite. ``closed`` and ``open`` are containers, the second for everybody."""

    endpoint: str

    @property
    def connection_string(self) -> str:
        """What opens the account, as Azure's portal shows it."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};"
            f"BlobEndpoint={self.endpoint};"
        )

    def make(self, container: str, *, public: bool) -> None:
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        if public:
            headers["x-ms-blob-public-access"] = "container"
        named = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        text = f"PUT{chr(10) * 12}{named}/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
        key = base64.b64decode(ACCOUNT_KEY)
        signature = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
        headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Type": ""}
        url = f"{self.endpoint}/{container}?restype=container"
        urllib.request.urlopen(urllib.request.Request(url, b"", headers, method="PUT")).close()


@contextmanager
def azure(work: Path) -> Iterator[AzureAccount]:
    """azurite with two containers."""
    program = azurite_program()
    with served_by(
        lambda port: [
            "node", str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port),
            "--location", str(work / "azurite"), "--silent", "--disableTelemetry", "--skipApiVersionCheck",
        ],
        work,
    ) as port:  # fmt: skip
        running = AzureAccount(f"http://127.0.0.1:{port}/{ACCOUNT}")
        running.make("closed", public=False)
        running.make("open", public=True)
        yield running


def azurite_program() -> Path:
    """azurite's server, installed once by npm; a test that can't have it is skipped and says why."""
    place = install_once(f"azurite-{AZURITE}", _install_azurite)
    return place / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


def _install_azurite(place: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("there is no npm, which azurite is installed by")
    place.mkdir()
    done = subprocess.run(
        ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(place), f"azurite@{AZURITE}"],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"azurite {AZURITE} can't be had: {done.stderr.strip()[-200:]}")


def service_account() -> Mapping[str, str]:
    """A key of a service account that nobody knows, with a real private key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "project_id": "demo",
        "private_key_id": "0123456789",
        "private_key": key.decode(),
        "client_email": "reader@demo.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": "https://oauth2.googleapis.com/token",
    }
