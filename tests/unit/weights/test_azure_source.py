"""Blobs with names that need care: listed, read, and linked to, by Azure's own rules; azurite checks what is signed."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.clouds import ACCOUNT, ACCOUNT_KEY, Azure, azure
from trainctl.errors import SourceDenied, SourceError
from trainctl.objects.access import AzureKey
from trainctl.objects.place import place_of
from trainctl.objects.shared_signature import shared_signature
from trainctl.spi.sources import Credential
from trainctl.weights.resolve import Wanted, resolve
from trainctl.weights.sources.azure import AzureSource

CREDENTIAL = Credential(json.dumps({"account_key": ACCOUNT_KEY}), "the test")
URI = f"azure://{ACCOUNT}/closed/odd"
ODD = [
    "plain.bin",
    "deep/er/a b.bin",
    "50%.bin",
    "%41.bin",
    "a%2Fb.bin",
    "hash#1?.bin",
    "plus+and&=.bin",
    "gewöhnlich-名.bin",
    "~!$'()*,;:@[]{}.bin",
    'quote"<>|^`.bin',
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azure]:
    with azure(tmp_path_factory.mktemp("azure")) as one:
        for name in ODD:
            put(one, f"odd/{name}", name.encode())
        yield one


@pytest.fixture
def source(server: Azure) -> AzureSource:
    return AzureSource(20, {"AZURE_STORAGE_ENDPOINT": server.endpoint})


def put(server: Azure, name: str, data: bytes) -> None:
    """As any of Azure's own tools would."""
    place = place_of(URI, server.endpoint, {})
    query = shared_signature(AzureKey(ACCOUNT_KEY), place, None, "cw", 600, time.time())
    headers = {"x-ms-blob-type": "BlockBlob", "x-ms-version": "2021-08-06"}
    url = f"{server.endpoint}/closed/{quote(name, safe='/')}?{query}"
    request = urllib.request.Request(url, data, headers, method="PUT")
    urllib.request.urlopen(request).close()


def test_any_name_is_listed_read_and_linked_to(source: AzureSource) -> None:
    """Each with its own bytes; nothing has to go through the operator's machine."""
    resolved = source.resolve(URI, None, CREDENTIAL)
    assert [one.path for one in resolved.files] == sorted(ODD)
    for file in resolved.files:
        with source.open(resolved, file, 0, CREDENTIAL) as pieces:
            assert b"".join(pieces) == file.path.encode()
        assert not source.relays(file, CREDENTIAL)
        link = source.link(resolved, file, CREDENTIAL)
        assert link is not None
        with urllib.request.urlopen(link) as answer:
            assert answer.read() == file.path.encode()


def test_a_name_that_is_none_fails_nothing_beside_it(
    server: Azure, source: AzureSource, tmp_path: Path
) -> None:
    """One with an empty part is refused by name, and not at all where patterns leave it out."""
    put(server, "strange/a//b.bin", b"1")
    put(server, "strange/a/fine.bin", b"1")
    strange = f"azure://{ACCOUNT}/closed/strange"

    def all_of(*ignore: str) -> list[str]:
        wanted = Wanted(strange, tmp_path, ignore=ignore or None)
        found = resolve(wanted, CREDENTIAL, open_source=lambda scheme: source)
        return [one.path for one in found.resolved.files]

    with pytest.raises(SourceError, match=r"a//b\.bin"):
        all_of()
    assert all_of("*//*") == ["a/fine.bin"]


def test_links_end_and_open_nothing_else(server: Azure, source: AzureSource) -> None:
    """One that has ended is refused, and so is one that is used for another blob."""
    resolved = source.resolve(URI, None, CREDENTIAL)
    (file,) = [one for one in resolved.files if one.path == "plain.bin"]
    link = source.link(resolved, file, CREDENTIAL)
    place = place_of(URI, server.endpoint, {})
    over = shared_signature(
        AzureKey(ACCOUNT_KEY), place, "odd/plain.bin", "r", 60, time.time() - 3600
    )
    assert link is not None
    for wrong in (link.replace("plain.bin", "%2541.bin"), f"{link.partition('?')[0]}?{over}"):
        with pytest.raises(urllib.request.HTTPError) as refused:
            urllib.request.urlopen(wrong)
        assert refused.value.code == 403
        refused.value.close()


def test_a_key_that_is_no_key_is_told(server: Azure, source: AzureSource) -> None:
    """Without showing it."""
    with pytest.raises(SourceDenied, match="is no base64") as told:
        source.resolve(URI, None, Credential(json.dumps({"account_key": "not base64!"}), "it"))
    assert "not base64!" not in str(told.value)
