"""What a bucket source makes of what lies in a bucket: names, markers, digests; with real servers of S3."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.support.cases import cases
from tests.support.servers.buckets import KEY_ID, SECRET, BucketServer, moto, rclone
from tests.support.servers.clouds import ACCOUNT, azure, service_account
from tests.support.servers.raw_server import RawRequest, raw_response, serve_responses
from tests.support.storage.weights_data import LFS_POINTER
from trainctl.base.filesystem.safe_path import is_unusable
from trainctl.buckets.bucket import Bucket
from trainctl.buckets.location import parse_bucket_location
from trainctl.errors import SourceDenied, SourceError, SourceNotFound
from trainctl.model.specs.resource import WeightsSpec
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.bucket import BucketSource
from trainctl.weights.resolution import SourceRequest, resolve

pytestmark = pytest.mark.integration

KEYS = SourceCredential(
    json.dumps({"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}), "secret keys"
)

NOBODY = SourceCredential("", "nobody")
DATED = {"ETag": '"1"', "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}


def listing(sizes: dict[str, int]) -> bytes:
    rows = (
        f"<Contents><Key>{key}</Key><Size>{size}</Size><ETag>1</ETag><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
        for key, size in sizes.items()
    )
    return raw_response(f"<ListBucketResult>{''.join(rows)}</ListBucketResult>")


@pytest.fixture(scope="module")
def server() -> Iterator[BucketServer]:
    """By moto."""
    with moto() as running:
        yield running


@pytest.fixture
def s3(server: BucketServer) -> Any:
    """A client that nobody here wrote, of an empty bucket."""
    client = boto3.client(
        "s3", endpoint_url=server.endpoint, region_name="us-east-1",
        aws_access_key_id=KEY_ID, aws_secret_access_key=SECRET,
    )  # fmt: skip
    for content in client.list_objects_v2(Bucket="models").get("Contents", []):
        client.delete_object(Bucket="models", Key=content["Key"])
    return client


@pytest.fixture
def source(server: BucketServer) -> BucketSource:
    """The source of that server's buckets."""
    return BucketSource(environ={"AWS_ENDPOINT_URL": server.endpoint})


def put(s3: Any, **objects: bytes) -> None:
    for key, data in objects.items():
        s3.put_object(Bucket="models", Key=key, Body=data)


def paths(source: BucketSource, uri: str) -> list[str]:
    return [file.path for file in source.resolve(uri, None, KEYS).files]


def planned(source: BucketSource, uri: str, *ignore: str) -> list[str]:
    request = SourceRequest(WeightsSpec(uri, ignore_patterns=ignore), Path())
    result = resolve(request, KEYS, open_source=lambda scheme: source)
    return [file.path for file in result.resolved.files]


def test_a_prefix_is_a_directory(s3: Any, source: BucketSource) -> None:
    """``s3://bucket/a`` has the objects below ``a/``, not those whose names only begin with ``a``."""
    put(s3, **{"a": b"alone", "a/x": b"1", "a/b/y": b"2", "ab/z": b"3"})
    assert paths(source, "s3://models/a") == ["b/y", "x"]
    assert paths(source, "s3://models/a/") == ["b/y", "x"]
    assert paths(source, "s3://models") == ["a", "a/b/y", "a/x", "ab/z"]


def test_an_object_alone_is_one_file(s3: Any, source: BucketSource) -> None:
    """If there is nothing below the prefix, the object of that name is the source."""
    put(s3, **{"dir/model.bin": b"content"})
    uri = "s3://models/dir/model.bin"
    assert paths(source, uri) == ["model.bin"]
    resolved = source.resolve(uri, None, KEYS)
    for reader in (source, BucketSource(environ=source._environ)):
        with reader.open(resolved, resolved.files[0], 3, KEYS) as body:
            assert b"".join(body) == b"tent"
    with pytest.raises(SourceNotFound, match="no objects found"):
        source.resolve(f"{uri}/", None, KEYS)


def test_markers_of_directories_are_no_files(s3: Any, source: BucketSource) -> None:
    """Empty objects whose names end in a slash or are directories are left out; others are files."""
    put(s3, **{"a/": b"", "a/b/": b"", "a/b/x": b"1", "a/c/": b"", "a/empty": b""})
    put(s3, **{"a/d": b"", "a/d-": b"2", "a/d/e/y": b"3", "a/d/e": b""})
    assert paths(source, "s3://models/a") == ["b/x", "d-", "d/e/y", "empty"]


def test_markers_and_the_archive_of_azure(tmp_path: Path) -> None:
    """Azure's list says which blobs are directories, and which are archived."""
    with azure(tmp_path) as account:
        credential = SourceCredential(account.connection_string, "a string")
        environ = {"AZURE_STORAGE_ENDPOINT": account.endpoint}
        uri = f"azure://{ACCOUNT}/closed/d"
        bucket = Bucket(parse_bucket_location(uri, None, environ), credential, environ)
        store: Any = bucket._client(long=False, sent=0)
        store.put("a/marker", b"", attributes={"hdi_isfolder": "true"})
        store.put("old", b"1", attributes={"Storage-Class": "Archive"})
        (file,) = BucketSource("azure", environ=environ).resolve(uri, None, credential).files
    assert (file.path, is_unusable(file)) == ("old", True)


def test_lists_share_a_connection_and_need_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty objects cost no request of their own."""
    monkeypatch.setattr("trainctl.buckets.bucket.open_client", None)
    listed, connections = listing({f"d/{number}": 0 for number in range(900)}), set[object]()

    def respond(request: RawRequest) -> bytes:
        connections.add(threading.current_thread())
        return listed

    with serve_responses(respond) as server:
        source = BucketSource(environ={"AWS_ENDPOINT_URL": server.url})
        assert [len(paths(source, "s3://models/d" + end)) for end in ("", "/")] == [900, 900]
    assert (len(server.heard), len(connections)) == (2, 1)


def test_an_odd_key_blocks_only_what_selects_it(s3: Any, source: BucketSource) -> None:
    """Each error names a pattern that leaves the key out."""
    odd = ["d/a//b", "d/../x", "d//y", "d/c\\d*[", "d/e\te", "d/./f/", "d/" + "g" * 256]
    put(s3, **dict.fromkeys([*odd, "d/ok"], b"1"))
    ignored: list[str] = []
    for _ in odd:
        with pytest.raises(SourceError, match="the file name") as caught:
            planned(source, "s3://models/d", *ignored)
        ignored += json.loads(re.findall(r"\[.*\](?=, or)", caught.value.detail)[0])
    assert planned(source, "s3://models/d", *ignored) == ["ok"]


def test_a_pointer_of_git_lfs_is_an_error(s3: Any, source: BucketSource) -> None:
    texts = {f"d/{number}.txt": bytes(len(LFS_POINTER)) for number in range(9)}
    put(s3, **texts, **{"d/train.jsonl": LFS_POINTER})
    with pytest.raises(SourceError, match=r"train\.jsonl is a Git LFS pointer"):
        planned(source, "s3://models/d")


def test_archived_objects_are_an_error(s3: Any, source: BucketSource) -> None:
    put(s3, **{"d/now": b"1", "d/ir": b"2"})
    for key in ("d/a", "d/b"):
        s3.put_object(Bucket="models", Key=key, Body=b"x", StorageClass="GLACIER")
    with pytest.raises(SourceDenied, match=r"2 objects are archived \(GLACIER\)") as caught:
        planned(source, "s3://models/d")
    assert caught.value.code == "archived-source"
    assert planned(source, "s3://models/d", "[ab]") == ["ir", "now"]


@pytest.mark.parametrize("case", cases("sources/archived_objects"))
def test_archived_objects_are_told_by_their_headers(case: dict[str, Any]) -> None:
    with serve_responses(lambda request: raw_response(b"x", **DATED, **case["headers"])) as server:
        info = Bucket(parse_bucket_location("s3://models", server.url, {}), KEYS, {}).stat("x")
    assert (info and info.archived) == case["archived"]


@pytest.mark.parametrize("uri", ["s3://models", "gs://models", "azure://acme/models"])
def test_one_object_needs_no_permission_to_list(uri: str) -> None:
    def respond(request: RawRequest) -> bytes:
        is_object = request.target.endswith("/dir/model.bin")
        return raw_response(b"content", **DATED) if is_object else raw_response(status="403 Denied")

    with serve_responses(respond) as server:
        source, nobody = BucketSource(uri.partition(":")[0]), replace(NOBODY, endpoint=server.url)
        (file,) = source.resolve(f"{uri}/dir/model.bin", None, nobody).files
        with pytest.raises(SourceDenied):
            source.resolve(f"{uri}/dir/other", None, nobody)
    assert (file.path, file.size) == ("model.bin", 7)


@pytest.mark.parametrize("status", ["301 Moved Permanently", "403 Forbidden"])
def test_one_object_in_another_region_is_found(status: str) -> None:
    """By the region in the error of the list, which the HEAD then uses, else in the header of the HEAD."""
    error = "<Error><Code>PermanentRedirect</Code><Region>eu-north-1</Region></Error>"

    def respond(request: RawRequest) -> bytes:
        if "/us-east-1/" in request.headers["authorization"]:
            refused = "400 Bad Request" if request.method == "HEAD" else status
            body = error if status.startswith("301") else ""
            return raw_response(body, refused, x_amz_bucket_region="eu-north-1")
        return raw_response(b"1", **DATED) if request.method == "HEAD" else listing({})

    with serve_responses(respond) as server:
        source, keys = BucketSource(environ={}), replace(KEYS, endpoint=server.url)
        files = source.resolve("s3://models/dir/x", None, keys).files
    assert (len(files), len(server.heard)) == (1, 3)


@pytest.mark.parametrize("uri", ["gs://models/d", "gs://models/d/x"])
def test_objects_of_google_stay_compressed(uri: str) -> None:
    """As ``gsutil cp -Z`` stores them; other bytes than are listed come if gzip isn't accepted."""

    def respond(request: RawRequest) -> bytes:
        if "list-type" in request.target:
            return listing({"d/x": 3})
        accepts = "gzip" in request.headers.get("accept-encoding", "")
        return raw_response(b"gz." if accepts else b"decompressed", **DATED)

    with serve_responses(respond) as server:
        source, nobody = BucketSource("gs"), replace(NOBODY, endpoint=server.url)
        resolved = source.resolve(uri, None, nobody)
        bucket = source._resolved(resolved, nobody)
        with source.open(resolved, resolved.files[0], 0, nobody) as body:
            assert [b"".join(body), bucket.get("x")] == [b"gz."] * 2
        assert bucket.stat("x") == next(bucket.list())


def test_the_requester_pays_for_lists_and_files() -> None:
    with serve_responses(lambda request: listing({"d/x": 1})) as server:
        pays = replace(KEYS, endpoint=server.url, requester_pays=True)
        source = BucketSource(environ={})
        resolved = source.resolve("s3://models/d", None, pays)
        url = source.presigned_url(resolved, resolved.files[0], pays) or ""
    assert server.heard[0].headers["x-amz-request-payer"] == "requester"
    assert "x-amz-request-payer=requester" in url


@pytest.mark.parametrize("environ", [{}, {"GOOGLE_CLOUD_PROJECT": "mine"}])
def test_google_bills_a_project_for_lists_and_files(environ: dict[str, str]) -> None:
    """No URL is signed, as obstore can't sign the project: the client relays the bytes."""
    value = json.dumps({"access_token": "t"} if environ else service_account())
    answers = [raw_response(b"abc", **DATED), listing({"d/x": 3})]
    with serve_responses(lambda request: answers.pop()) as server:
        pays = SourceCredential(value, "a login", server.url, requester_pays=True)
        source = BucketSource("gs", environ=environ)
        resolved = source.resolve("gs://models/d", None, pays)
        assert source.needs_relay(resolved.files[0], pays)
        if environ:  # obstore would exchange the key
            with source.open(resolved, resolved.files[0], 0, pays) as body:
                assert b"".join(body) == b"abc"
            with pytest.raises(SourceError, match="no project to bill"):
                BucketSource("gs", environ={}).resolve("gs://models/d", None, pays)
    billed = {request.headers["x-goog-user-project"] for request in server.heard}
    assert billed == {environ.get("GOOGLE_CLOUD_PROJECT", "demo")}


def test_many_pages_are_one_source(tmp_path: Path) -> None:
    """More objects than a page holds are all there, once."""
    with rclone(tmp_path / "rclone") as bucket:
        many = tmp_path / "rclone" / "models" / "many"
        many.mkdir()
        for number in range(1001):
            (many / f"{number:04}").touch()
        source = BucketSource(environ={"AWS_ENDPOINT_URL": bucket.endpoint})
        assert paths(source, "s3://models/many") == [f"{n:04}" for n in range(1001)]
