"""The store's objects in buckets of servers on this machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from tests.support.bucket_mirrors import place_in
from tests.support.buckets import Bucket, moto, rclone
from tests.support.clouds import Azure, azure
from tests.support.google_xml import GoogleXml, google_xml
from trainctl.base.retry import Retry
from trainctl.objects.bucket import BucketObjects, open_bucket_store
from trainctl.spi.sources import Credential
from trainctl.store import keys

Server = Bucket | GoogleXml | Azure
SERVERS: dict[str, Callable[[Path], AbstractContextManager[Server]]] = {
    "s3": lambda work: moto(),
    "rclone": lambda work: rclone(work / "root"),
    "google": lambda work: google_xml(),
    "azure": azure,
}


def objects_in(server: Server, prefix: str) -> BucketObjects:
    """The objects below a prefix; nothing waits between attempts."""
    url, environ, value = place_in(server, prefix)
    retry = Retry(wait=lambda cancelled, seconds: None)
    credential = Credential(value, "the test")
    return open_bucket_store(
        url, None, lambda: credential, retry, environ=environ, is_own=keys.is_own
    )
