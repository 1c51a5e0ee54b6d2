from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.support.hub import Fault, FaultyHandler, Hub, listening, serve
from trainctl.errors import SourceBusy, SourceResting
from trainctl.weights.sources.gates import GATES, MOST_AT_ONCE, Gate
from trainctl.weights.sources.http import HttpClient


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as running:
        running.add("acme/model", {"a.json": b"{}", "b.json": b"{}"})
        yield running
    GATES.clear()


def ask(client: HttpClient, hub: Hub, name: str) -> bytes:
    with client.get(f"{hub.url}/acme/model/resolve/main/{name}", name, {}) as response:
        return response.read(100)


def refuse(hub: Hub, status: int = 429, **headers: str) -> None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    hub.faults = [Fault("status", "a.json", status=status, headers=named)]
    with pytest.raises(SourceBusy):
        ask(HttpClient(), hub, "a.json")


@pytest.mark.parametrize("status", [429, 503])
def test_who_is_refused_speaks_for_all(hub: Hub, status: int) -> None:
    """While a server wants to be left alone no client of this process asks it, and another server is asked as ever."""
    refuse(hub, status, Retry_After="40")
    hub.seen.clear()
    with pytest.raises(
        SourceResting, match=r"b\.json: 127\.0\.0\.1:\d+ asked for a pause"
    ) as caught:
        ask(HttpClient(), hub, "b.json")
    assert hub.seen == []
    assert 30 < (caught.value.retry_after or 0) <= 40
    with serve() as other:
        other.add("acme/model", {"b.json": b"{}"})
        assert ask(HttpClient(), other, "b.json") == b"{}"


def test_the_window_of_the_hub_is_a_pause(hub: Hub) -> None:
    """The Hub tells in RateLimit how long its window lasts."""
    refuse(hub, RateLimit='"api";r=0;t=55', Retry_After="1")
    with pytest.raises(SourceResting) as caught:
        ask(HttpClient(), hub, "b.json")
    assert 45 < (caught.value.retry_after or 0) <= 55


def test_what_nobody_waits_for_holds_nobody_back(hub: Hub) -> None:
    """Who is told to come back in an hour fails alone."""
    refuse(hub, Retry_After="3600")
    assert ask(HttpClient(), hub, "b.json") == b"{}"


def test_a_pause_ends_and_only_grows() -> None:
    """The longest that was asked for counts; what is little more than is known is no news."""
    now = [100.0]
    gate = Gate(lambda: now[0])
    assert gate.pause(10)
    assert not gate.pause(5)
    assert not gate.pause(10.5)
    assert gate.pause(20)
    now[0] = 119.5
    with pytest.raises(SourceResting), gate.passed("it", "host"):
        pass
    now[0] = 120.0
    with gate.passed("it", "host"):
        pass
    assert gate.pause(None)
    with pytest.raises(SourceResting) as caught, gate.passed("it", "host"):
        pass
    assert caught.value.retry_after == 1.0


class _Crowded(FaultyHandler):
    """Holds every answer back, and counts."""

    closing = threading.Event()
    lock = threading.Lock()
    under_way = 0
    most = 0
    full = threading.Event()
    too_many = threading.Event()
    go_on = threading.Event()

    def do_GET(self) -> None:  # noqa: N802  the name is the library's
        kind = type(self)
        with self.lock:
            kind.under_way += 1
            kind.most = max(kind.most, kind.under_way)
            if kind.under_way >= MOST_AT_ONCE:
                self.full.set()
            if kind.under_way > MOST_AT_ONCE:
                self.too_many.set()
        self.go_on.wait(30)
        with self.lock:
            kind.under_way -= 1
        self.answer(200, b"{}")


def test_clients_share_the_room_at_a_server() -> None:
    """However many sources ask, a server has only so many of our requests at a time, and all are answered."""
    answered = []

    def work(client: HttpClient, url: str) -> None:
        with client.get(url, "it", {}) as response:
            answered.append(response.read(10))

    with listening(_Crowded) as url:
        clients = [HttpClient() for _ in range(3)]
        threads = [
            threading.Thread(target=work, args=(client, f"{url}/{number}"), daemon=True)
            for client in clients
            for number in range(MOST_AT_ONCE)
        ]
        for thread in threads:
            thread.start()
        assert _Crowded.full.wait(30)
        _Crowded.too_many.wait(0.5)
        _Crowded.go_on.set()
        for thread in threads:
            thread.join(30)
    assert _Crowded.most == MOST_AT_ONCE
    assert len(answered) == 3 * MOST_AT_ONCE
