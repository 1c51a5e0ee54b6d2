"""Digests of container images, as their registries have them now.

https://distribution.github.io/distribution/spec/api/ and …/spec/auth/token/.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlencode, urlsplit

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.network.http_errors import HttpError
from trainctl.errors import SourceError
from trainctl.model.specs.image import Image
from trainctl.secrets.registries import registry_host
from trainctl.secrets.resolver import SecretResolver

if TYPE_CHECKING:
    from trainctl.base.http.client import HttpClient
    from trainctl.base.http.connection import Headers

_MEDIA_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_DIGEST = compile_lazily(r"sha256:[0-9a-f]{64}")
_PARAMETER = compile_lazily(r'(\w+)="([^"]*)"')
_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")
_MOST_BYTES = 2**20
_OK, _UNAUTHORIZED = 200, 401


def image_digest(image: Image, secrets: SecretResolver, client: HttpClient) -> str:
    """Return the digest of an image; raise TrainctlError if its registry doesn't report one.

    Sends the declared login only, and only to the registry and its own token server.
    """
    repository, tag, digest = _parse(image.base_image)
    if digest:
        return digest
    host, path = _location(repository)
    if host == "localhost":  # the name of images that were built on a node
        raise SourceError("it is a local image")
    server = "registry-1.docker.io" if host in _HUB else host
    url = f"{_scheme(host)}://{server}/v2/{path}/manifests/{tag}"
    sent: Mapping[str, str] = {}
    try:
        status, headers = _head(client, url, sent)
        if status == _UNAUTHORIZED:
            login = _login(image, host, secrets)
            granted = _authorization(client, headers, host, path, login)
            secrets.register(granted)
            sent = {"Authorization": granted}
            status, headers = _head(client, url, sent)
    except HttpError as error:
        raise SourceError(error.reason) from None
    except ValueError as error:
        raise SourceError(f"{host}: {error}") from None
    if status != _OK:
        raise SourceError(f"{host}: HTTP status {status}")
    found = headers.get("Docker-Content-Digest") or ""
    if not _DIGEST.fullmatch(found):
        raise SourceError(f"{host}: it reports no digest")
    return found


def by_digest(image: str, digest: str) -> str:
    """Return the reference of an image by its digest instead of its tag."""
    return f"{_parse(image)[0]}@{digest}"


def _parse(image: str) -> tuple[str, str, str]:
    """Return repository, tag and digest."""
    name, _, digest = image.partition("@")
    folder, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    return f"{folder}{slash}{last}", tag or "latest", digest


def _location(repository: str) -> tuple[str, str]:
    """Return the host of the registry, and the path there; Docker Hub is the default."""
    host, _, path = repository.partition("/")
    if not path or not (set(host) & {".", ":"} or host == "localhost"):
        host, path = "docker.io", repository
    return host, path if host not in _HUB or "/" in path else f"library/{path}"


def _scheme(host: str) -> str:
    """Engines use plain HTTP on this machine only."""
    return "http" if host.startswith(("localhost:", "127.")) else "https"


def _head(client: HttpClient, url: str, secret: Mapping[str, str]) -> tuple[int, Headers]:
    accept = {"Accept": ", ".join(_MEDIA_TYPES)}
    with client.request("HEAD", url, accept, secret_headers=secret, follow=False) as response:
        return response.status, response.headers


def _login(image: Image, host: str, secrets: SecretResolver) -> str | None:
    """Return the Basic credential of ``docker_auth`` if it is for this registry."""
    auth = image.docker_auth
    declared = registry_host(auth.registry).lower() if auth else ""
    if declared != host and not (declared in _HUB and host in _HUB):
        return None
    login = secrets.registry_login(image)
    if login is None:
        return None
    pair = f"{login['username']}:{login['password']}"
    return secrets.register(f"Basic {base64.b64encode(pair.encode()).decode()}")


def _authorization(
    client: HttpClient, headers: Headers, host: str, path: str, login: str | None
) -> str:
    """Answer a challenge: with the login itself, or with a token that it is exchanged for."""
    scheme, _, rest = (headers.get("WWW-Authenticate") or "").partition(" ")
    challenge = dict(_PARAMETER.findall(rest))
    if scheme.lower() != "bearer":
        if login is None:
            raise ValueError("a login is required")
        return login
    realm = challenge.get("realm", "")
    if not _is_own(urlsplit(realm), host):
        raise ValueError("its token server is another host")
    scope = {"service": challenge.get("service", ""), "scope": f"repository:{path}:pull"}
    secret = {"Authorization": login} if login else {}
    url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(scope)}"
    with client.request("GET", url, secret_headers=secret, follow=False) as response:
        if response.status != _OK:
            raise ValueError(f"HTTP status {response.status} from its token server")
        document = json.loads(response.read_all(_MOST_BYTES))
    return f"Bearer {document.get('token') or document.get('access_token') or ''}"


def _is_own(url: SplitResult, host: str) -> bool:
    """Whether a token server belongs to a registry: the same host, or a domain of the other."""
    server = url.netloc
    related = server == host or server.endswith(f".{host}") or host.endswith(f".{server}")
    return bool(server) and related and url.scheme == _scheme(host)
