from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.support.storage.mirrors import MemorySource
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.errors import (
    SourceDenied,
    SourceNotFound,
    SourceThrottled,
    SourceUnavailable,
    SourceUnreachable,
    TrainctlError,
)
from trainctl.plugin_api.sources import SourceCredential
from trainctl.resources.mirror.source_urls import run_relay


class _Failing(MemorySource):
    failure: TrainctlError

    @contextmanager
    def open(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        offset: int,
        credential: SourceCredential | None,
    ) -> Iterator[Iterator[bytes]]:
        raise self.failure
        yield


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (SourceUnavailable("busy", retry_after=2.5), (503, "3")),
        (SourceThrottled("resting", retry_after=7.0), (503, "7")),
        (SourceUnavailable("busy"), (503, None)),
        (SourceUnreachable("away"), (503, None)),
        (SourceNotFound("gone"), (404, None)),
        (SourceDenied("denied"), (403, None)),
    ],
)
def test_a_host_hears_what_it_may_try_again_and_when(
    tmp_path: Path, failure: TrainctlError, expected: tuple[int, str | None]
) -> None:
    """What passes is 503, with as long a wait as upstream asks for; what doesn't is said as it is."""
    source = _Failing({"w.bin": b"0123"})
    source.failure = failure
    resolved = source.resolve("hf://a/b", None, None)

    def open_file(file: SourceFile, offset: int) -> AbstractContextManager[Iterator[bytes]]:
        return source.open(resolved, file, offset, None)

    with run_relay("token", resolved.files, open_file) as relay:
        path = "/0"
        connection = HTTPConnection("127.0.0.1", relay.port)
        connection.request("GET", path, headers={"Authorization": "Bearer token"})
        answer = connection.getresponse()
        connection.close()

    assert (answer.status, answer.getheader("Retry-After")) == expected
