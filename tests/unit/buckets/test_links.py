"""Presigned URLs open exactly the object of their name, whatever it is called."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from tests.support.servers.bucket_stores import SERVERS, place_in
from tests.support.servers.google_xml import GoogleXml
from trainctl.buckets.bucket_client import open_bucket
from trainctl.buckets.location import parse_bucket_location
from trainctl.plugin_api.sources import SourceCredential

pytestmark = pytest.mark.integration

NAMES = ["a b", "a%20b", "50% off", "#1", "a?b", "a+b", "a&b=c", "a,b;c", "ü", "a'(b)", "[x]{y}", "a~b", "a@b:c"]  # fmt: skip


@pytest.mark.parametrize("platform", ["s3", "google", "azure"])
def test_a_presigned_url_opens_the_object_of_that_name(platform: str, tmp_path: Path) -> None:
    """Also below a prefix of such a name; a list has the same name."""
    with SERVERS[platform](tmp_path) as server:
        contents = []
        for name in NAMES:
            url, environ, value = place_in(server, name)
            location = parse_bucket_location(url, None, environ)
            bucket = open_bucket(location, SourceCredential(value, "the test"), environ)
            bucket.put(name, name.encode())
            presigned = bucket.sign(name, 100) or ""
            if isinstance(server, GoogleXml):
                presigned = presigned.replace("https://storage.googleapis.com", server.url)
            with urllib.request.urlopen(presigned) as response:
                contents.append((next(bucket.list()).key, response.read().decode()))
    assert contents == [(name, name) for name in NAMES]
