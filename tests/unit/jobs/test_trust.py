"""May this secret go to this host? The one answer, and which host a manifest means."""

from __future__ import annotations

from typing import Any

import pytest

from trainctl.errors import PermissionDenied
from trainctl.jobs.destinations import bucket_destination, registry_destination, source_destination
from trainctl.model.specs.job_spec import DockerAuthSpec
from trainctl.model.specs.resource import SourceAuthSpec, WeightsSpec
from trainctl.model.trust import AllowEntry, HostPattern, SecretDestination, Trust, host_of_url


def trusting(*hosts: str, secret: str = "corp") -> Trust:
    return Trust(
        "trust.toml", (AllowEntry(secret, tuple(HostPattern.parse(one) for one in hosts)),)
    )


@pytest.mark.parametrize(
    ("entry", "url", "allowed"),
    [
        ("models.example.com", "https://models.example.com/x", True),
        ("models.example.com", "https://MODELS.Example.com./x", True),
        ("models.example.com", "https://models.example.com:8443/x", True),
        ("models.example.com:443", "https://models.example.com/x", True),
        ("models.example.com:443", "https://models.example.com:8443/x", False),
        ("models.example.com", "https://models.example.com.evil.example/x", False),
        ("models.example.com", "https://evil.example/models.example.com", False),
        ("models.example.com", "https://models.example.com@evil.example/x", False),
        ("models.example.com", "https://evilmodels.example.com/x", False),
        ("example.com", "https://models.example.com/x", False),
        ("*.example.com", "https://models.example.com/x", True),
        ("*.example.com", "https://a.b.example.com/x", True),
        ("*.example.com", "https://example.com/x", False),
        ("*.example.com", "https://evilexample.com/x", False),
        ("*.example.com:9000", "https://a.example.com/x", False),
        ("127.0.0.1", "https://127.0.0.1:9/x", True),
        ("127.0.0.1", "https://127.0.0.10/x", False),
        ("[::1]:8443", "https://[::1]:8443/x", True),
        ("models.example.com", "https://mod\u0435ls.example.com/x", False),
        ("models.example.com", "https://models.example.com:99999/x", False),
        ("models.example.com", "https://", False),
    ],
)
def test_which_hosts_an_entry_speaks_of(entry: str, url: str, *, allowed: bool) -> None:
    """Exactly the host, or what lies below a domain; nothing that only looks like it."""
    assert trusting(entry).may_send("corp", SecretDestination(host_of_url(url))) is allowed


def test_an_entry_is_for_its_secret() -> None:
    """Another secret needs its own; ``*`` is every one."""
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


@pytest.mark.parametrize(
    ("method", "registry", "given"),
    [
        ("REGISTRY_SECRET", "ghcr.io", True),
        ("REGISTRY_SECRET", "https://docker.io/v1/", True),
        ("REGISTRY_SECRET", "registry.example:5000", False),
        ("REGISTRY_SECRET", "127.0.0.1:5000", False),
        ("REGISTRY_SECRET", "ghcr.io.evil.example", False),
        ("REGISTRY_SECRET", "ghcr.io#.evil.example", False),
        ("REGISTRY_SECRET", "ghcr.io@evil.example", False),
        ("REGISTRY_SECRET", "ghcr.io\\.evil.example", False),
        ("REGISTRY_SECRET", "http://ghcr.io", False),
        ("GCP_SERVICE_ACCOUNT_JSON", "europe-docker.pkg.dev", True),
        ("GCP_SERVICE_ACCOUNT_JSON", "eu.gcr.io", True),
        ("GCP_SERVICE_ACCOUNT_JSON", "evilgcr.io", False),
        ("GCP_SERVICE_ACCOUNT_JSON", "ghcr.io", False),
        ("AWS_IAM", "123456789012.dkr.ecr.eu-west-1.amazonaws.com", True),
        ("AWS_IAM", "123456789012.dkr.ecr.eu-west-1.amazonaws.com.evil.example", False),
    ],
)
def test_who_receives_a_registrys_login(method: str, registry: str, *, given: bool) -> None:
    """A key goes to its own platform, a login to registries for everybody's images; all else needs an entry."""
    assert registry_destination(DockerAuthSpec(method, registry)).given is given


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
