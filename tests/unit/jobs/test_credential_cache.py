"""Roles and accounts that several sources name: asked for once for all of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.servers.identity_servers import POOL, IdentityServers, identity_servers
from trainctl.errors import SourceUnreachable
from trainctl.jobs.secrets import SecretResolver
from trainctl.model.redaction import Redactor
from trainctl.model.single_flight import SingleFlight
from trainctl.model.specs.resource import SourceAuthSpec, WeightsSpec
from trainctl.plugin_api.sources import SourceCredential


def credential(
    secrets: SecretResolver, source: str, account: str = "reader@demo"
) -> SourceCredential:
    auth = SourceAuthSpec(
        "GCP_OIDC", gcp_oidc_service_account=account, gcp_oidc_workload_id_provider=POOL
    )
    found = secrets.declared_credential(WeightsSpec(source, auth=auth))
    assert found is not None
    return found


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
            found = list(pool.map(lambda n: credential(secrets, f"gs://bucket-{n}/a"), range(8)))
        other = credential(secrets, "gs://bucket-1/a", "writer@demo")
        assert len(google.granted) == 2
    assert len({one.value for one in found}) == 1
    assert other.value != found[0].value


def test_what_ends_is_asked_for_again_once(tmp_path: Path) -> None:
    """By whoever comes first; the others get what it got, and so on each time."""
    with identity_servers() as google:
        secrets = secrets_of(google, tmp_path)
        first, second = (credential(secrets, f"gs://bucket-{n}/a") for n in range(2))
        assert first.renew is not None
        assert second.renew is not None
        again = [first.renew(), second.renew()]
        assert len({one.value for one in again}) == 1
        assert again[0].value != first.value
        assert again[0].renew is not None
        assert again[0].renew().value not in (first.value, again[0].value)
        assert len(google.granted) == 3


class Role:
    """A key that tells when it was looked up often enough; who looks it up holds the lock until it knows whether to wait."""

    def __init__(self, times: int) -> None:
        self._left = times
        self.looked_up = threading.Event()

    def __hash__(self) -> int:
        self._left -= 1
        if self._left == 0:
            self.looked_up.set()
        return 1


def test_who_waits_for_what_fails_hears_of_it_at_once() -> None:
    """All who waited get the error of the one who asked; who comes later asks again, and what was given stays."""
    together, asked, waiters = SingleFlight[str](forget_errors=True), [], 3
    role, begun = Role(2 * (1 + waiters)), threading.Event()

    def away() -> str:
        asked.append(role)
        begun.set()
        role.looked_up.wait()
        raise SourceUnreachable("away")

    with ThreadPoolExecutor(1 + waiters) as pool:
        first = pool.submit(together.get, role, away)
        begun.wait()
        others = [pool.submit(together.get, role, away) for _ in range(waiters)]
        failures = {str(one.exception()) for one in (first, *others)}

    assert failures == {"away"}
    assert len(asked) == 1
    assert together.get(role, lambda: "key") == "key"
    assert together.get(role, away) == "key"
