"""Roles and accounts that several sources name: asked for once for all of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.servers.identity_servers import POOL, IdentityServers, identity_servers
from trainctl.model.redaction import Redactor
from trainctl.model.specs.auth import SourceAuthSpec
from trainctl.model.specs.resource import WeightsSpec
from trainctl.plugin_api.sources import SourceCredential
from trainctl.secrets.resolver import SecretResolver


def credential(
    secrets: SecretResolver, source: str, account: str = "reader@demo"
) -> SourceCredential:
    auth = SourceAuthSpec(
        "GCP_OIDC", gcp_oidc_service_account=account, gcp_oidc_workload_id_provider=POOL
    )
    credential = secrets.declared_credential(WeightsSpec(source, auth=auth))
    assert credential is not None
    return credential


def secrets_of(google: IdentityServers, directory: Path) -> SecretResolver:
    """A manifest's, with an identity that Google exchanges."""
    token = directory / "token"
    token.write_text("header.claims.signature")
    environ = {
        "GOOGLE_OIDC_TOKEN_FILE": str(token),
        "GOOGLE_STS_URL": google.url,
        "GOOGLE_IAM_CREDENTIALS_URL": google.url,
    }
    return SecretResolver({}, directory, environ, Redactor())


def test_an_account_is_asked_for_once_for_all_sources(tmp_path: Path) -> None:
    """However many sources name it, at the same time; another account is another credential."""
    with identity_servers() as google:
        secrets = secrets_of(google, tmp_path)
        with ThreadPoolExecutor(8) as pool:
            numbers = list(pool.map(lambda n: credential(secrets, f"gs://bucket-{n}/a"), range(8)))
        other = credential(secrets, "gs://bucket-1/a", "writer@demo")
        assert len(google.granted) == 2
    assert len({number.value for number in numbers}) == 1
    assert other.value != numbers[0].value


def test_what_ends_is_asked_for_again_once(tmp_path: Path) -> None:
    """By whoever comes first; the others get what it got, and so on each time."""
    with identity_servers() as google:
        secrets = secrets_of(google, tmp_path)
        first, second = (credential(secrets, f"gs://bucket-{n}/a") for n in range(2))
        assert first.renew is not None
        assert second.renew is not None
        again = [first.renew(), second.renew()]
        assert len({item.value for item in again}) == 1
        assert again[0].value != first.value
        assert again[0].renew is not None
        assert again[0].renew().value not in (first.value, again[0].value)
        assert len(google.granted) == 3
