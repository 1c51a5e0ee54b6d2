"""Digests of images: what a registry answers, and to whom a login goes."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from trainctl.base.http.client import HttpClient
from trainctl.desired.values import SecretSpec
from trainctl.errors import PermissionDenied, SourceError
from trainctl.inputs.image_digests import by_digest, image_digest
from trainctl.model.redaction import Redactor
from trainctl.model.specs.checks import SecretReference
from trainctl.model.specs.image import DockerAuth, Image, RegistrySecretDockerAuth
from trainctl.model.trust import AllowEntry, HostPattern, Trust
from trainctl.secrets.resolver import SecretResolver

DIGEST = "sha256:" + "5a" * 32
LOGIN = "Basic " + base64.b64encode(b"me:password").decode()
TOKEN = "a-token-of-the-registry"


class Registry(ThreadingHTTPServer):
    """A registry: ``open`` images for all, ``basic`` ones with the login, ``bearer`` ones with a token for it."""

    realm = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, str]] = []

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """Answers as the specification says."""

    server: Registry

    def do_HEAD(self) -> None:
        given = self.headers.get("Authorization", "")
        self.server.seen.append((self.path, given))
        name = self.path.split("/")[2]
        needed = {"basic": LOGIN, "bearer": f"Bearer {TOKEN}"}.get(name, "")
        if needed and given != needed:
            realm = self.server.realm or f"http://{self.server.host}/token"
            challenge = {
                "basic": 'Basic realm="x"',
                "bearer": f'Bearer realm="{realm}",service="s"',
            }
            self.answer(401, {"WWW-Authenticate": challenge[name]})
        elif name == "moved":
            self.answer(307, {"Location": "http://127.0.0.1:1/"})
        else:
            result = {"Docker-Content-Digest": DIGEST} if name != "old" else {}
            self.answer(404 if name == "gone" else 200, result)

    def do_GET(self) -> None:
        """The token server."""
        self.server.seen.append((self.path, self.headers.get("Authorization", "")))
        self.answer(
            200 if self.headers.get("Authorization") == LOGIN else 403,
            {},
            f'{{"token": "{TOKEN}", "message": "not yours"}}',
        )

    def answer(self, status: int, headers: dict[str, str], body: str = "") -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def registry() -> Iterator[Registry]:
    """One on this machine."""
    with Registry() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def resolved(image: str, registry: str = "", trusted: str = "") -> str:
    """The digest, with a login for that registry, if any, that trust allows for a host."""
    auth = DockerAuth(
        "REGISTRY_SECRET",
        registry,
        registry_secret_docker_auth=RegistrySecretDockerAuth(SecretReference("login")),
    )
    trust = Trust(
        "trust.toml", (AllowEntry("login", (HostPattern.parse(trusted or "none.example"),)),)
    )
    secrets = SecretResolver(
        {"login": SecretSpec("login", "env", "LOGIN")},
        Path("/"),
        {"LOGIN": "me:password"},
        Redactor(),
        lambda: trust,
    )
    return image_digest(Image(image, auth if registry else None), secrets, HttpClient())


def test_a_registry_names_the_digest(registry: Registry) -> None:
    """With a login where one is declared and allowed, as it is or for a token."""
    host = registry.host
    assert resolved(f"{host}/open/train:1") == DIGEST
    assert resolved(f"{host}/open/train") == DIGEST
    assert resolved(f"{host}/basic/train:1", host, host) == DIGEST
    assert resolved(f"{host}/bearer/train:1", host, host) == DIGEST
    assert [path for path, _ in registry.seen][:2] == [
        "/v2/open/train/manifests/1",
        "/v2/open/train/manifests/latest",
    ]
    assert [given for path, given in registry.seen if "open" in path] == ["", ""]
    assert "scope=repository%3Abearer%2Ftrain%3Apull" in registry.seen[-2][0]


def test_an_image_by_digest_needs_no_registry() -> None:
    assert resolved(f"ghcr.example/acme/train:1@{DIGEST}") == DIGEST
    assert (
        by_digest("ghcr.example:5000/acme/train:1", DIGEST)
        == f"ghcr.example:5000/acme/train@{DIGEST}"
    )
    assert by_digest("train", DIGEST) == f"train@{DIGEST}"


def test_without_an_answer_there_is_no_digest(registry: Registry) -> None:
    """Each cause in a few words; a redirect isn't followed."""
    host = registry.host
    for name, cause in {
        "gone": "HTTP status 404",
        "old": "reports no digest",
        "moved": "HTTP status 307",
        "basic": "a login is required",
        "bearer": "HTTP status 403 from its token server",
    }.items():
        with pytest.raises(SourceError, match=cause):
            resolved(f"{host}/{name}/train:1")
    with pytest.raises(SourceError, match="a local image"):
        resolved("localhost/train:1")
    with pytest.raises(SourceError, match=r"cannot reach 127\.0\.0\.1:1 "):
        resolved("127.0.0.1:1/acme/train:1")


def test_a_login_goes_only_where_it_may(registry: Registry) -> None:
    """Not to a host that trust doesn't name, not to another registry, not to a token server elsewhere."""
    host = registry.host
    with pytest.raises(PermissionDenied):
        resolved(f"{host}/basic/train:1", host)
    with pytest.raises(SourceError, match="a login is required"):
        resolved(f"{host}/basic/train:1", "ghcr.io", host)
    for realm in ("http://127.0.0.2:1/token", f"https://{host}/token", "file:///etc/passwd", ""):
        registry.realm = realm or "//"
        with pytest.raises(SourceError, match="its token server is another host"):
            resolved(f"{host}/bearer/train:1", host, host)
    assert not any(given for _, given in registry.seen)
