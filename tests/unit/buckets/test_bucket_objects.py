"""The store's objects in a bucket whose server fails now and then."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from trainctl.base.retry import RetryPolicy
from trainctl.buckets.bucket_store import BucketObjects
from trainctl.buckets.metadata import ObjectInfo
from trainctl.errors import SourceDenied, SourceError, SourceUnavailable, StorageError

URL = "s3://models/pre"


class Server:
    """A bucket in memory. ``errors`` are raised by the next calls, after they did what they do."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.errors: list[SourceError] = []
        self.calls = 0

    def answer(self, value: Any) -> Any:
        self.calls += 1
        if self.errors:
            raise self.errors.pop()
        return value

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes | None:
        return self.answer(self.objects.get(key))  # type: ignore[no-any-return]

    def put_if_absent(self, key: str, data: bytes) -> bool:
        is_new = self.objects.setdefault(key, data) is data
        return self.answer(is_new)  # type: ignore[no-any-return]

    def list(self, prefix: str, after: str, each: Any) -> Iterator[ObjectInfo]:
        for number, key in enumerate(sorted(self.objects)):
            if key > after:
                if number % 700 == 699:
                    each(lambda: self.answer(None))
                yield ObjectInfo(key, 1, None, datetime.now(UTC))

    def delete(self, *keys: str) -> None:
        assert len(keys) <= 1000
        for key in keys:
            self.objects.pop(key, None)
        self.answer(None)

    def sign(self, key: str, seconds: int) -> str | None:
        return None


def objects_of(server: Server) -> BucketObjects:
    retry = RetryPolicy(wait=lambda cancelled, seconds: None, attempts=3)
    return BucketObjects(URL, lambda: server, retry)  # type: ignore[arg-type,return-value]


def test_passing_errors_are_retried() -> None:
    server = Server()
    server.objects["a"] = b"x"
    server.errors = [SourceUnavailable("later"), SourceUnavailable("later")]
    assert objects_of(server).get("a") == b"x"
    assert server.calls == 3


def test_other_errors_name_the_mirror_and_not_the_object() -> None:
    server = Server()
    server.errors = [SourceDenied(f"{URL}: secret/key: refused (403)", "Check.", code="denied")]
    with pytest.raises(StorageError, match=f"mirror {URL}: refused") as raised:
        objects_of(server).get("secret/key")
    assert raised.value.code == "denied"
    assert server.calls == 1


def test_a_lost_answer_to_a_creation() -> None:
    server = Server()
    objects = objects_of(server)
    server.errors = [SourceUnavailable("cut")]
    assert objects.put_if_absent("a", b"mine")
    server.errors = [SourceUnavailable("cut")]
    assert not objects.put_if_absent("a", b"other")


def test_a_server_that_replaces_objects() -> None:
    class Replacing(Server):
        def put_if_absent(self, key: str, data: bytes) -> bool:
            self.objects[key] = b"of a later writer"
            return True

    assert not objects_of(Replacing()).put_if_absent("a", b"mine")


def test_a_list_repeats_the_request_that_failed() -> None:
    server = Server()
    names = [f"{number:04}" for number in range(2500)]
    server.objects = dict.fromkeys(names, b"x")
    server.errors = [SourceUnavailable("cut"), SourceUnavailable("cut")]
    found = [stat.key for stat in objects_of(server).list("")]
    assert found == names
    assert not server.errors


def test_many_objects_are_deleted_in_batches() -> None:
    server = Server()
    names = [f"{number:04}" for number in range(2500)]
    server.objects = dict.fromkeys(names, b"x")
    objects_of(server).delete(names[1:])
    assert list(server.objects) == names[:1]
    assert server.calls == 3


def test_a_credential_that_cannot_sign() -> None:
    server = Server()
    with pytest.raises(StorageError) as raised:
        objects_of(server).sign(["a"], 60)
    assert raised.value.code == "mirror-cannot-presign"
