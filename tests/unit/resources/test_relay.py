from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.support.mirrors import MemorySource
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.errors import (
    SourceBusy,
    SourceDenied,
    SourceGone,
    SourceResting,
    SourceUnreachable,
    TrainctlError,
)
from trainctl.resources.mirror.relay import relaying
from trainctl.spi.sources import Credential


class _Failing(MemorySource):
    failure: TrainctlError

    @contextmanager
    def open(
        self, resolved: ResolvedSource, file: SourceFile, offset: int, credential: Credential | None
    ) -> Iterator[Iterator[bytes]]:
        raise self.failure
        yield


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (SourceBusy("busy", retry_after=2.5), (503, "3")),
        (SourceResting("resting", retry_after=7.0), (503, "7")),
        (SourceBusy("busy"), (503, None)),
        (SourceUnreachable("away"), (503, None)),
        (SourceGone("gone"), (404, None)),
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

    with relaying("token", resolved.files, open_file) as relay:
        path = relay.path_of(0)
        connection = HTTPConnection("127.0.0.1", relay.port)
        connection.request("GET", path, headers={"Authorization": "Bearer token"})
        answer = connection.getresponse()
        connection.close()

    assert (answer.status, answer.getheader("Retry-After")) == expected
