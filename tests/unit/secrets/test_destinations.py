"""May this secret go to this host? The one answer, and which host a manifest means."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import by_text
from trainctl.errors import PermissionDenied
from trainctl.model.specs.auth import SourceAuthSpec
from trainctl.model.specs.image import DockerAuth
from trainctl.model.specs.resource import WeightsSpec
from trainctl.model.trust import AllowEntry, HostPattern, SecretDestination, Trust, host_of_url
from trainctl.secrets.destinations import (
    bucket_destination,
    registry_destination,
    source_destination,
)


def trusting(*hosts: str, secret: str = "corp") -> Trust:
    return Trust(
        "trust.toml", (AllowEntry(secret, tuple(HostPattern.parse(host) for host in hosts)),)
    )


@pytest.mark.parametrize(("entry", "urls"), by_text("jobs/trusted_hosts"))
def test_which_hosts_an_entry_speaks_of(entry: str, urls: dict[str, bool]) -> None:
    """Exactly the host, or what lies below a domain; nothing that only looks like it."""
    for url, allowed in urls.items():
        to = SecretDestination(host_of_url(url))
        assert trusting(entry).may_send("corp", to) is allowed, url


def test_an_entry_is_for_its_secret() -> None:
    to = SecretDestination(HostPattern("a.example", 443))
    assert not trusting("a.example").may_send("other", to)
    assert trusting("a.example", secret="*").may_send("other", to)
    with pytest.raises(
        PermissionDenied, match=r"secret 'other' is not sent to a\.example"
    ) as caught:
        trusting("a.example").require_host("other", to)
    assert 'secret = "other"\n    hosts = ["a.example"]' in caught.value.detail


@pytest.mark.parametrize(
    ("source", "auth", "environ", "host", "given"),
    [
        ("hf://a/b", {}, {}, "huggingface.co", True),
        ("hf://a/b", {}, {"HF_ENDPOINT": "https://hub.lan:8443"}, "hub.lan:8443", True),
        ("https://a.example/f", {}, {}, "a.example", False),
        ("https://127.0.0.1:8/f", {}, {}, "127.0.0.1:8", False),
        ("https://huggingface.co/f", {}, {}, "huggingface.co", False),
        ("s3://bucket/p", {}, {}, "s3.amazonaws.com", True),
        ("s3://bucket/p", {"endpoint_url": "http://127.0.0.1:9000"}, {}, "127.0.0.1:9000", False),
        (
            "s3://bucket/p",
            {"endpoint_url": "https://minio.lan"},
            {"AWS_ENDPOINT_URL": "https://minio.lan/"},
            "minio.lan",
            True,
        ),
    ],
)
def test_who_receives_what_opens_a_source(
    source: str, auth: dict[str, Any], environ: dict[str, str], host: str, *, given: bool
) -> None:
    """The platform of its scheme and what the environment names are given; what only the manifest names is not."""
    weights = WeightsSpec(source, auth=SourceAuthSpec(auth_secret_name="a", **auth))
    to = source_destination(weights, environ)
    assert (str(to.host), to.given) == (host, given)


@pytest.mark.parametrize(("method", "registries"), by_text("jobs/registries"))
def test_who_receives_a_registrys_login(method: Any, registries: dict[str, bool]) -> None:
    """A key goes to its own platform, a login to registries for everybody's images; all else needs an entry."""
    for registry, given in registries.items():
        assert registry_destination(DockerAuth(method, registry)).given is given, registry


def test_an_endpoint_of_the_environment_is_that_server_only() -> None:
    """The same host at another port is another server."""
    environ = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9000", "AWS_ENDPOINT_URL": "http://other"}
    url = "s3://bucket/p"
    assert bucket_destination(url, None, environ).given
    assert bucket_destination(url, "http://127.0.0.1:9000/", environ).given
    assert not bucket_destination(url, "http://127.0.0.1:9001", environ).given
    assert not bucket_destination(url, "http://other", environ).given


def test_what_names_no_server_is_trusted_with_nothing() -> None:
    """A URL that is no bucket's, and an endpoint that is none."""
    assert not bucket_destination("s3://x/p", None, {}).given
    assert not bucket_destination("s3://bucket/p", "http://", {}).given
