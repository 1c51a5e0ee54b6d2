"""States in buckets of servers on this machine, each behind a ``FaultProxy``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

from tests.support.servers.bucket_stores import SERVERS, place_in
from tests.support.servers.fault_proxy import FaultProxy, fault_proxy
from tests.support.servers.google_xml import GoogleXml
from trainctl.buckets import bucket
from trainctl.buckets.bucket import STATE_RETRY, BucketObjects
from trainctl.plugin_api.sources import SourceCredential
from trainctl_state import BucketLog

RETRY = replace(STATE_RETRY, attempts=4, unanswered=4, wait=lambda cancelled, seconds: None)
"""Nothing waits between attempts."""
PATIENCE = 60.0
"""Seconds that a client of the tests waits for a byte of a server on a busy machine."""


@dataclass(frozen=True)
class Cloud:
    """A server, reached through ``proxy``: the bucket's URL, the environment and the credential that lead there."""

    proxy: FaultProxy
    url: str
    environ: Mapping[str, str]
    credential: str

    def objects(self, prefix: str) -> BucketObjects:
        credential = SourceCredential(self.credential, "the test")
        url = f"{self.url}{prefix}"
        return BucketObjects(
            url, None, lambda: credential, RETRY, purpose="state", environ=self.environ
        )


@contextmanager
def clouds(name: str, work: Path) -> Iterator[Cloud]:
    """A server of ``SERVERS``, for as long as the block lasts."""
    with SERVERS[name](work) as server, patch.object(bucket, "STATE_SILENCE_SECONDS", PATIENCE):
        endpoint = server.url if isinstance(server, GoogleXml) else server.endpoint
        with fault_proxy(endpoint) as proxy:
            if isinstance(server, GoogleXml):
                server = replace(server, url=proxy.url)
            else:
                server = replace(server, endpoint=proxy.url)
            url, environ, credential = place_in(server, "")
            yield Cloud(proxy, url, environ, credential)


def bucket_log(cloud: Cloud, prefix: str) -> BucketLog:
    """A client of the state below a prefix."""
    return BucketLog(cloud.objects(prefix), f"{cloud.url}{prefix}")
