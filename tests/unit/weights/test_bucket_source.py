"""What a bucket source makes of what lies in a bucket: names, markers, digests; with real servers of S3."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.buckets import KEY_ID, SECRET, Bucket, rclone
from tests.support.clouds import google, service_account
from tests.support.mirrors import REFERENCE, impatient, mirror_at
from trainctl.errors import SourceDenied, SourceError, SourceGone, SourceWrong
from trainctl.spi.sources import Credential
from trainctl.weights.resolve import Wanted, resolve
from trainctl.weights.sources.bucket import BucketSource
from trainctl.weights.sources.gs import GoogleSource
from trainctl.weights.sources.s3 import S3Source

pytestmark = pytest.mark.integration

KEYS = Credential(
    json.dumps({"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}), "secret keys"
)


@pytest.fixture(params=[S3Source, BucketSource])
def either(request: pytest.FixtureRequest, server: Bucket) -> BucketSource:
    """With S3's own listing, and with the engine's."""
    made: BucketSource = request.param(environ={"AWS_ENDPOINT_URL": server.endpoint})
    return made


def put(s3: Any, **objects: bytes) -> None:
    for key, data in objects.items():
        s3.put_object(Bucket="models", Key=key, Body=data)


def paths(source: BucketSource, uri: str) -> list[str]:
    return [file.path for file in source.resolve(uri, None, KEYS).files]


def read(source: BucketSource, uri: str, path: str) -> bytes:
    resolved = source.resolve(uri, None, KEYS)
    (file,) = (one for one in resolved.files if one.path == path)
    with source.open(resolved, file, 0, KEYS) as pieces:
        return b"".join(pieces)


def test_a_prefix_is_a_directory(s3: Any, either: BucketSource) -> None:
    """``s3://bucket/a`` is what lies in ``a/``: neither what only begins so, nor an object of exactly that name."""
    put(s3, **{"a": b"alone", "a/x": b"1", "a/b/y": b"2", "ab/z": b"3"})
    assert paths(either, "s3://models/a") == ["b/y", "x"]
    assert paths(either, "s3://models/a/") == ["b/y", "x"]
    assert paths(either, "s3://models") == ["a", "a/b/y", "a/x", "ab/z"]


def test_an_object_alone_is_one_file(s3: Any, either: BucketSource) -> None:
    """Where nothing lies in the directory, the object of that name is the source, under its last name, also to another reader."""
    put(s3, **{"dir/model.bin": b"content"})
    uri = "s3://models/dir/model.bin"
    assert paths(either, uri) == ["model.bin"]
    assert read(either, uri, "model.bin") == b"content"
    resolved = either.resolve(uri, None, KEYS)
    other = type(either)(environ=either._environ)
    with other.open(resolved, resolved.files[0], 3, KEYS) as pieces:
        assert b"".join(pieces) == b"tent"
    with pytest.raises(SourceGone, match="nothing lies there"):
        either.resolve(f"{uri}/", None, KEYS)


def test_markers_of_directories_are_no_files(s3: Any, either: BucketSource) -> None:
    """Empty objects whose names end in a slash are left out; empty objects with other names are files."""
    put(s3, **{"a/": b"", "a/b/": b"", "a/b/x": b"1", "a/c/": b"", "a/empty": b""})
    assert paths(either, "s3://models/a") == ["b/x", "empty"]


@pytest.mark.parametrize("key", ["a//b", "a/../b", "a/./b", "a/x\\y"])
def test_a_name_that_can_be_no_file_is_refused_unless_patterns_leave_it_out(
    s3: Any, source: S3Source, tmp_path: Path, key: str
) -> None:
    """A hostile key is an error that shows it, before anything is written; with a pattern that leaves it out, the rest is had."""
    put(s3, **{key: b"evil", "a/good": b"1"})
    with pytest.raises(SourceError, match="the file name") as caught:
        resolve(Wanted("s3://models/a", tmp_path), KEYS, open_source=lambda scheme: source)
    assert caught.value.code == "unsafe-file-name"
    kept = Wanted("s3://models/a", tmp_path, allow=("good",))
    found = resolve(kept, KEYS, open_source=lambda scheme: source)
    assert [file.path for file in found.resolved.files] == ["good"]


def test_many_pages_are_one_source(s3: Any, either: BucketSource) -> None:
    """More objects than a page holds are all there, once."""
    put(s3, **{f"many/{n:04}": b"x" for n in range(1001)})
    assert paths(either, "s3://models/many") == [f"{n:04}" for n in range(1001)]


def test_a_digest_that_s3_announces_identifies_the_content(
    s3: Any, source: S3Source, server: Bucket, tmp_path: Path
) -> None:
    """A sha256 of the whole object is the validator; so the same content under another name costs no transfer. One of parts is not."""
    data = b"weights" * 1000
    for key in ("one/model.bin", "two/other.bin"):
        s3.put_object(Bucket="models", Key=key, Body=data, ChecksumAlgorithm="SHA256")
    put(s3, **{"one/plain": data})
    upload = s3.create_multipart_upload(
        Bucket="models", Key="one/parts", ChecksumAlgorithm="SHA256"
    )["UploadId"]
    part = s3.upload_part(
        Bucket="models", Key="one/parts", UploadId=upload, PartNumber=1, Body=data,
        ChecksumAlgorithm="SHA256",
    )  # fmt: skip
    s3.complete_multipart_upload(
        Bucket="models", Key="one/parts", UploadId=upload,
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"], "ChecksumSHA256": part["ChecksumSHA256"]}]},
    )  # fmt: skip
    one, two = (source.resolve(f"s3://models/{name}", None, KEYS) for name in ("one", "two"))
    kinds = {file.path: file.validator.partition(":")[0] for file in one.files}
    assert kinds == {"model.bin": "sha256", "parts": "etag", "plain": "etag"}
    assert two.files[0].sha256 == hashlib.sha256(data).hexdigest()

    mirror = mirror_at(tmp_path)
    mirror.mirror(one, source, REFERENCE, credential=KEYS)
    assert mirror.mirrored_bytes(two)[0] == len(data)


def test_an_object_that_is_replaced_is_noticed(s3: Any, either: BucketSource) -> None:
    """Content that was replaced after it was resolved is refused, whether it has the same size or another."""
    put(s3, **{"a/x": b"first"})
    resolved = either.resolve("s3://models/a", None, KEYS)
    (file,) = resolved.files
    for data in (b"other", b"longer"):
        put(s3, **{"a/x": data})
        with (
            pytest.raises(
                SourceWrong, match=r"x: it has changed since it was resolved \(.* then, .* now\)"
            ),
            either.open(resolved, file, 2, KEYS) as pieces,
        ):
            list(pieces)


def test_a_server_that_ignores_conditions_is_compared(tmp_path: Path) -> None:
    """rclone answers whatever ETag is asked for: another one in its answer is refused, and both are told."""
    with rclone(tmp_path / "rclone") as bucket:
        store = BucketSource(environ={"AWS_ENDPOINT_URL": bucket.endpoint})
        assert bucket.directory is not None
        (bucket.directory / "a").mkdir()
        (bucket.directory / "a" / "x").write_bytes(b"first")
        resolved = store.resolve("s3://models/a", None, KEYS)
        wrong = replace(resolved.files[0], validator='etag:"0123"')
        with (
            pytest.raises(SourceWrong, match='ETag "0123" then, "'),
            store.open(resolved, wrong, 0, KEYS) as pieces,
        ):
            list(pieces)


def test_a_generation_that_is_replaced_is_noticed(tmp_path: Path) -> None:
    """Google's objects are asked for by generation, so what replaced one is not taken for it."""
    with google(tmp_path) as server:
        server.put("a/x", b"first")
        source = GoogleSource(environ={"STORAGE_EMULATOR_HOST": server.url})
        before = source.resolve("gs://models/a", None, None)
        server.put("a/x", b"other")
        after = source.resolve("gs://models/a", None, None)
    assert before.files[0].validator.startswith("generation:")
    assert before.pin != after.pin


def test_google_names_directories_files_and_markers(tmp_path: Path) -> None:
    """The same rules: a directory first, else the object of that name; markers are left out."""
    with google(tmp_path) as server:
        for name in ("a", "a/x", "a/b/", "ab/z", "dir/model.bin"):
            server.put(name, b"" if name.endswith("/") else b"1")
        source = GoogleSource(environ={"STORAGE_EMULATOR_HOST": server.url})
        found = {
            uri: [file.path for file in source.resolve(f"gs://models/{uri}", None, None).files]
            for uri in ("a", "dir/model.bin")
        }
        resolved = source.resolve("gs://models/dir/model.bin", None, None)
        other = GoogleSource(environ={"STORAGE_EMULATOR_HOST": server.url})
        with other.open(resolved, resolved.files[0], 0, None) as pieces:
            assert b"".join(pieces) == b"1"
    assert found == {"a": ["x"], "dir/model.bin": ["model.bin"]}


def test_nobody_who_answers_is_tried_again(tmp_path: Path) -> None:
    """Where nobody listens it is tried twice, and no more by the engine itself."""
    tries: list[float] = []
    source = S3Source(environ={"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    patience = replace(impatient(3), wait=lambda cancelled, seconds: tries.append(seconds))
    with pytest.raises(SourceError, match="can't reach"):
        resolve(
            Wanted("s3://models/a", tmp_path),
            KEYS,
            retry=patience,
            open_source=lambda scheme: source,
        )
    assert len(tries) == 1


def test_a_missing_bucket_and_a_wrong_key_are_told_apart(tmp_path: Path) -> None:
    """No such bucket is gone; a signature that doesn't fit is denied, names the secret and shows none of it."""
    with rclone(tmp_path / "rclone") as bucket:
        (Path(bucket.directory or "") / "x").write_bytes(b"1")
        source = S3Source(environ={"AWS_ENDPOINT_URL": bucket.endpoint})
        with pytest.raises(SourceGone, match="no such bucket"):
            source.resolve("s3://absent/a", None, KEYS)
        wrong = Credential(KEYS.value.replace(SECRET, "not-" + SECRET), "secret keys")
        with pytest.raises(SourceDenied, match="refused the credential") as caught:
            source.resolve("s3://models", None, wrong)
    assert "secret keys" in caught.value.detail
    assert SECRET not in str(caught.value)


def test_a_service_account_reads_by_a_token_and_signs_by_its_key(tmp_path: Path) -> None:
    """Where no emulator is named, the key is exchanged for a token at the server that it names; links are signed without asking anybody."""
    with google(tmp_path) as server, tokens() as (url, asked):
        server.put("a/x ü.bin", b"content")
        key = Credential(json.dumps(service_account(token_uri=url)), "secret key", server.url)
        source = GoogleSource(environ={})
        resolved = source.resolve("gs://models/a", None, key)
        with source.open(resolved, resolved.files[0], 3, key) as pieces:
            assert b"".join(pieces) == b"tent"
        link = source.link(resolved, resolved.files[0], key) or ""
    assert len(asked) == 1
    assert b"assertion=" in asked[0]
    assert "/models/a/x%20%C3%BC.bin?" in link
    assert "X-Goog-Signature=" in link
    assert "X-Goog-Expires=3600" in link


@contextmanager
def tokens() -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives an access token to whoever asks."""
    asked: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps({"access_token": "ya29.token", "expires_in": 3600}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/token", asked
        server.shutdown()
