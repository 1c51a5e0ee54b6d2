"""Limits per host: requests at the same time, pauses, and how servers ask for them."""

from __future__ import annotations

import threading

import pytest

from tests.support.servers.hub import http_date
from tests.support.servers.raw_server import RawRequest, raw_response, serve_responses
from trainctl.base.http import HostThrottled, HttpClient
from trainctl.base.http.limits import MAX_CONCURRENT, HostLimit, HostLimits, retry_after


def get(client: HttpClient, url: str) -> bytes:
    with client.request("GET", url) as response:
        return response.read()


def test_a_pause_holds_every_client_back() -> None:
    now = [100.0]
    limit = HostLimit(lambda: now[0])
    assert limit.pause(10)
    assert not limit.pause(5)
    assert not limit.pause(10.5)
    assert limit.pause(20)
    now[0] = 119.5
    with pytest.raises(HostThrottled) as caught, limit.slot("host"):
        pass
    assert caught.value.retry_after == 0.5
    now[0] = 120.0
    with limit.slot("host"):
        pass
    assert limit.pause(None)
    with pytest.raises(HostThrottled), limit.slot("host"):
        pass


def test_a_host_has_so_many_requests_at_a_time() -> None:
    """Bodies included, whichever client asks."""
    full, release, over = threading.Event(), threading.Event(), []
    at_once: list[int] = []
    lock = threading.Lock()

    def tell(heard: RawRequest) -> bytes:
        with lock:
            at_once.append(1)
            if len(at_once) == MAX_CONCURRENT:
                full.set()
            over.append(len(at_once))
        release.wait(10)
        with lock:
            at_once.pop()
        return raw_response(b"x")

    limits = HostLimits()
    with serve_responses(tell) as server:
        threads = [
            threading.Thread(target=get, args=(HttpClient(limits=limits), server.url))
            for _ in range(MAX_CONCURRENT + 5)
        ]
        for thread in threads:
            thread.start()
        assert full.wait(10)
        release.set()
        for thread in threads:
            thread.join(10)
    assert (max(over), len(over)) == (MAX_CONCURRENT, MAX_CONCURRENT + 5)


def test_retry_after_is_seconds_or_a_date() -> None:
    """A date counts from the server's own Date; the Hub's window counts before either."""
    assert retry_after({"Retry-After": "12"}) == 12
    dates = {"Retry-After": http_date(100_060), "Date": http_date(100_000)}
    assert retry_after(dates) == pytest.approx(60, abs=1)
    assert retry_after({"Retry-After": http_date(-60)}) == 0
    assert retry_after({"Retry-After": "soon"}) is None
    assert retry_after({"RateLimit": '"api";r=0;t=55', "Retry-After": "1"}) == 55
    assert retry_after({"RateLimit": '"api"; r=3; t=55', "Retry-After": "1"}) == 1
    assert retry_after({}) is None
