"""Which links a host gets, and that it gets no others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.storage.mirrors import immediate_retry
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.errors import SourceError
from trainctl.remote.agent import NodeAgent
from trainctl.resources.host_mirror import SourceUrlProvider

FILES = {"small": b"bytes of a small file", "signed": b"x"}
SOURCE = ResolvedSource(
    "hf://acme/model", "1", tuple(SourceFile(path, len(FILES[path]), "git:1") for path in sorted(FILES))
)  # fmt: skip


class _Upstream:
    def open(self, file: SourceFile, offset: int) -> AbstractContextManager[Iterator[bytes]]:
        return nullcontext(iter([FILES[file.path][offset:]]))


class _Linking(_Upstream):
    def presigned_url(self, file: SourceFile) -> str | None:
        return "https://storage.example/x?signature=s3cr3t" if file.path == "signed" else None


class _Agent:
    @contextmanager
    def expose(self, port: int) -> Iterator[int]:
        yield port


@pytest.fixture
def masked() -> list[str]:
    return []


def links(upstream: Any, masked: list[str], *paths: str, method: str = "links") -> Any:
    """Links that stay open as long as the generator isn't closed."""

    def register(value: str) -> str:
        masked.append(value)
        return value

    agent, retry = cast(NodeAgent, _Agent()), immediate_retry()
    with SourceUrlProvider(SOURCE, upstream, agent, register, retry, threading.Event()) as provider:
        yield provider.response({"method": method, "paths": list(paths)})["links"]


def test_a_presigned_url_is_masked(masked: list[str]) -> None:
    (found,) = links(_Linking(), masked, "signed")
    assert found == [{"url": "https://storage.example/x?signature=s3cr3t"}]
    assert masked == ["signature=s3cr3t"]


@pytest.mark.parametrize("upstream", [_Linking(), _Upstream()], ids=["linking", "plain"])
def test_a_file_without_a_presigned_url_is_relayed_with_a_token(
    upstream: Any, masked: list[str]
) -> None:
    for (link,) in links(upstream, masked, "small"):
        assert link["relayed"]
        assert masked == [link["token"]]
        authorization = {"Authorization": f"Bearer {link['token']}"}
        with urlopen(Request(link["url"], headers=authorization)) as response:
            assert response.read() == FILES["small"]
        with pytest.raises(HTTPError, match="403"):
            urlopen(link["url"])


@pytest.mark.parametrize(
    ("method", "path"),
    [("links", "/etc/passwd"), ("links", "zzz"), ("links", ""), ("origin", "small")],
)
def test_a_host_gets_files_of_the_source_only(masked: list[str], method: str, path: str) -> None:
    with pytest.raises(SourceError, match="host"):
        next(links(_Linking(), masked, "small", path, method=method))
    assert masked == []
