"""How a host requests presigned URLs: in batches, ahead of need, and again if they were refused."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from trainctl.base.listing import SourceFile
from trainctl.base.protocol.wire import CallbackClient, error_to_json
from trainctl.errors import SourceNotFound
from trainctl.node.mirror import SourceUrlCache

SMALL = [SourceFile(f"{number:03}", 10, "git:1") for number in range(150)]
LARGE = SourceFile("large", 2**30, "git:2")
FILES = [*SMALL, LARGE]


class Caller:
    """Answers each question as soon as it is asked, unless it is gone."""

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        self._stream = os.fdopen(reader, "rb")
        self.questions: list[list[str]] = []
        self.error: SourceNotFound | None = None
        self.callbacks = CallbackClient(self._stream, self._emit)

    def _emit(self, event: Mapping[str, Any]) -> None:
        self.questions.append(list(event["paths"]))
        urls = [{"url": f"https://s/{path}?{len(self.questions)}"} for path in event["paths"]]
        response = {"error": error_to_json(self.error)} if self.error else {"links": urls}
        os.write(
            self._writer, json.dumps({"response": event["request"], **response}).encode() + b"\n"
        )

    def leave(self) -> None:
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def close(self) -> None:
        self.leave()
        assert self.callbacks.gone.wait(10)
        for thread in threading.enumerate():
            if getattr(thread, "_target", None) == self.callbacks._listen:
                thread.join()
        self._stream.close()


@pytest.fixture
def caller() -> Iterator[Caller]:
    caller = Caller()
    yield caller
    caller.close()


def test_urls_of_small_files_are_requested_together(caller: Caller) -> None:
    links = SourceUrlCache(caller.callbacks, FILES)
    urls = [links.find(file).url for file in SMALL]

    assert [url.partition("?")[0] for url in urls] == [f"https://s/{file.path}" for file in SMALL]
    assert [len(paths) for paths in caller.questions] == [64, 64, 22]
    assert links.find(LARGE).url.startswith("https://s/large")
    assert caller.questions[-1] == ["large"]


def test_the_next_batch_is_requested_before_it_is_needed(caller: Caller) -> None:
    links = SourceUrlCache(caller.callbacks, FILES)
    links.find(SMALL[0])
    assert [paths[0] for paths in caller.questions] == ["000", "064"]


def test_a_refused_url_is_requested_again(caller: Caller) -> None:
    links = SourceUrlCache(caller.callbacks, FILES)
    first = links.find(LARGE)
    again = links.find(LARGE)
    assert (first.is_new, again.is_new, again.url) == (True, False, first.url)
    links.forget(LARGE, again)
    assert links.find(LARGE).url != first.url


def test_an_error_is_raised_and_not_remembered(caller: Caller) -> None:
    links = SourceUrlCache(caller.callbacks, FILES)
    caller.error = SourceNotFound("it is gone")
    with pytest.raises(SourceNotFound):
        links.find(LARGE)
    caller.error = None
    assert links.find(LARGE).is_new
