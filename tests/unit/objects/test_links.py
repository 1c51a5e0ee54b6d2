"""Links by which anybody may read an object, whatever it is called."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.support.servers.bucket_stores import place_in
from tests.support.servers.buckets import moto
from tests.support.servers.clouds import azure
from tests.support.servers.google_xml import google_xml
from trainctl.objects.bucket_client import Bucket, open_bucket
from trainctl.objects.location import parse_bucket_location
from trainctl.plugin_api.sources import SourceCredential

pytestmark = pytest.mark.integration

NAMES = ["a b", "a%20b", "50% off", "#1", "a?b", "a+b", "a&b=c", "a,b;c", "ü", "a'(b)", "[x]{y}", "a~b", "a@b:c"]  # fmt: skip
GOOGLE = "https://storage.googleapis.com"

Opened = Callable[[Path], AbstractContextManager[tuple[Callable[[str], Bucket], str]]]


@contextmanager
def s3(work: Path) -> Iterator[tuple[Callable[[str], Bucket], str]]:
    with moto() as server:
        yield lambda prefix: bucket(*place_in(server, prefix)), GOOGLE


@contextmanager
def gs(work: Path) -> Iterator[tuple[Callable[[str], Bucket], str]]:
    with google_xml() as server:
        yield lambda prefix: bucket(*place_in(server, prefix)), server.url


@contextmanager
def blobs(work: Path) -> Iterator[tuple[Callable[[str], Bucket], str]]:
    with azure(work) as server:
        yield lambda prefix: bucket(*place_in(server, prefix)), GOOGLE


def bucket(url: str, environ: dict[str, str], value: str) -> Bucket:
    return open_bucket(
        parse_bucket_location(url, None, environ), SourceCredential(value, "the test"), environ
    )


@pytest.mark.parametrize("platform", [s3, gs, blobs], ids=lambda one: one.__name__)
def test_a_link_opens_the_object_of_that_name(platform: Opened, tmp_path: Path) -> None:
    """Of that name and no other, in a directory of such a name: links of Google's were cut off at ``#`` and ``?``."""
    with platform(tmp_path) as (at, host):
        for name in NAMES:
            at(name).put(name, name.encode())
        read = []
        for name in NAMES:
            link = at(name).sign(name, 100)
            assert link is not None
            with urllib.request.urlopen(link.replace(GOOGLE, host)) as answer:
                read.append(answer.read().decode())
    assert read == NAMES
