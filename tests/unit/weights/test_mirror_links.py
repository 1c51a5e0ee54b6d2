"""What a host asks its caller for while it mirrors: links, before their turn comes; and how often it says how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.protocol.asking import Asked
from trainctl.errors import SourceBusy
from trainctl.weights.mirror.caller import Caller
from trainctl.weights.mirror.fetch import LARGE_FROM_BYTES
from trainctl.weights.mirror.links import Links
from trainctl.weights.mirror.paced import Paced

URI = "hf://acme/model"


class Operator:
    """Makes links, each with a number of its own; ``asked`` are the paths of each question."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.busy = False

    def begin(self, question: Mapping[str, Any]) -> Asked:
        assert (question["want"], question["source"], question["revision"]) == ("links", URI, "1")
        number = len(self.asked)
        self.asked.append(list(question["paths"]))
        asked = Asked()
        asked.answer = {"links": [{"url": f"{path}?{number}"} for path in question["paths"]]}
        return asked

    def wait(self, asked: Asked) -> Mapping[str, Any]:
        if self.busy:
            raise SourceBusy("later")
        assert asked.answer is not None
        return asked.answer


def links_of(operator: Operator, *, in_turn: bool = True) -> Links:
    return Links(cast(Caller, operator), in_turn=in_turn)


def source_of(*sizes: int) -> ResolvedSource:
    """Files of these sizes, in order."""
    files = (
        SourceFile(f"{number:04}", size, f"etag:{number}") for number, size in enumerate(sizes)
    )
    return ResolvedSource(URI, "1", tuple(files))


def test_links_of_small_files_are_asked_for_before_their_turn_comes() -> None:
    """Two questions before the first file is fetched, and one more whenever the first file of the last question is wanted: none twice."""
    operator, resolved = Operator(), source_of(*[10] * 200)
    links = links_of(operator)
    ahead = []

    for number, file in enumerate(resolved.files):
        assert links.find(resolved, file).link["url"].startswith(f"{file.path}?")
        ahead.append(sum(map(len, operator.asked)) - number)

    assert min(ahead[:64]) > 64
    assert len(operator.asked) == 4
    assert [path for paths in operator.asked for path in paths] == [
        one.path for one in resolved.files
    ]


def test_large_files_are_asked_for_alone_and_once() -> None:
    """Each when it is wanted, by whichever of its connections; no small one's question names it."""
    operator, resolved = Operator(), source_of(10, LARGE_FROM_BYTES + 1, 10)
    links = links_of(operator)

    found = [links.find(resolved, resolved.files[number]).link for number in (1, 1, 0, 2)]

    assert [one["url"] for one in found] == ["0001?0", "0001?0", "0000?1", "0002?1"]
    assert operator.asked == [["0001"], ["0000", "0002"]]


def test_out_of_turn_each_file_is_asked_for_alone() -> None:
    """A repair wants this one and that one."""
    operator, resolved = Operator(), source_of(10, 10, 10)
    links = links_of(operator, in_turn=False)

    links.find(resolved, resolved.files[1])

    assert operator.asked == [["0001"]]


def test_a_link_that_is_forgotten_is_made_anew_and_is_fresh() -> None:
    """Only that one; what was found before it was made anew forgets nothing of the new one."""
    operator, resolved = Operator(), source_of(10, 10)
    links = links_of(operator)
    links.find(resolved, resolved.files[0])
    old = links.find(resolved, resolved.files[1])
    links.forget(resolved, resolved.files[1], old)

    new = links.find(resolved, resolved.files[1])
    links.forget(resolved, resolved.files[1], old)
    again = links.find(resolved, resolved.files[1])

    assert [(one.link["url"], one.fresh) for one in (old, new, again)] == [
        ("0001?0", False),
        ("0001?1", True),
        ("0001?1", False),
    ]
    assert operator.asked == [["0000", "0001"], ["0001"]]


def test_a_question_that_failed_is_put_again() -> None:
    """By whoever wants one of its links next, for all of them."""
    operator, resolved = Operator(), source_of(10, 10)
    links = links_of(operator)
    operator.busy = True
    for file in resolved.files:
        with pytest.raises(SourceBusy):
            links.find(resolved, file)
    operator.busy = False

    urls = [links.find(resolved, file).link["url"] for file in resolved.files]

    assert operator.asked == [["0000", "0001"], ["0001"], ["0000", "0001"]]
    assert urls == ["0000?2", "0001?2"]


def test_progress_is_told_a_few_times_a_second_and_at_the_end() -> None:
    """A thousand files in a second are ten words, and the last says that all is there."""
    told: list[tuple[int, int, int]] = []
    now = 0.0
    paced = Paced(lambda *figures: told.append(figures), lambda: now)

    for number in range(1, 1001):
        now += 0.001
        paced(number, 1000, number)

    assert 9 <= len(told) <= 12
    assert told[0] == (1, 1000, 1)
    assert told[-1] == (1000, 1000, 1000)
