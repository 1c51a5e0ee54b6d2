"""The store's objects in buckets of servers on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from tests.support.servers.buckets import BucketServer, moto, rclone
from tests.support.servers.clouds import ACCOUNT, AzureAccount, azure
from tests.support.servers.google_xml import GoogleXml, google_xml
from trainctl.base.retry import RetryPolicy
from trainctl.buckets.bucket import BucketObjects
from trainctl.plugin_api.sources import SourceCredential
from trainctl.store import keys

Server = BucketServer | GoogleXml | AzureAccount
SERVERS: dict[str, Callable[[Path], AbstractContextManager[Server]]] = {
    "s3": lambda work: moto(),
    "rclone": lambda work: rclone(work / "root"),
    "google": lambda work: google_xml(),
    "azure": azure,
}


def place_in(
    bucket: BucketServer | GoogleXml | AzureAccount, prefix: str
) -> tuple[str, dict[str, str], str]:
    """URL, what the environment says of the endpoint, and credential."""
    if isinstance(bucket, GoogleXml):
        return f"gs://models/{prefix}", {"STORAGE_EMULATOR_HOST": bucket.url}, bucket.document
    if isinstance(bucket, AzureAccount):
        value = bucket.connection_string
        return (
            f"azure://{ACCOUNT}/closed/{prefix}",
            {"AZURE_STORAGE_ENDPOINT": bucket.endpoint},
            value,
        )
    environ = {"AWS_ENDPOINT_URL": bucket.endpoint}
    return f"s3://{bucket.name}/{prefix}", environ, json.dumps(bucket.credential)


def objects_in(server: Server, prefix: str) -> BucketObjects:
    """The objects below a prefix; nothing waits between attempts."""
    url, environ, value = place_in(server, prefix)
    retry = RetryPolicy(wait=lambda cancelled, seconds: None)
    credential = SourceCredential(value, "the test")
    return BucketObjects(
        url, None, lambda: credential, retry, environ=environ, is_own=keys.is_store_key
    )
