from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.authority import authority
from tests.support.hub import Fault, Hub, http_date, serve
from tests.support.weights_data import noise
from trainctl.errors import SourceCut, SourceError, SourceUnreachable
from trainctl.weights.sources.hf import HubSource
from trainctl.weights.sources.http import HttpClient
from trainctl.weights.sources.statuses import retry_after
from trainctl.weights.sources.wire import Headers


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class _Relay(socketserver.StreamRequestHandler):
    """A proxy: CONNECT makes a tunnel, anything else is answered with what was asked."""

    def handle(self) -> None:
        first = self.rfile.readline().decode()
        headers = {}
        while (line := self.rfile.readline().strip()) != b"":
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        self.server.seen.append((first.strip(), headers))  # type: ignore[attr-defined]
        if self.server.refusal:  # type: ignore[attr-defined]
            said = f"HTTP/1.1 {self.server.refusal}\r\nContent-Length: 0\r\n\r\n"  # type: ignore[attr-defined]
            self.wfile.write(said.encode())
            return
        if not first.startswith("CONNECT"):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            return
        host, _, port = first.split()[1].partition(":")
        with socket.create_connection((host, int(port))) as beyond:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_pump, args=(beyond, self.connection), daemon=True)
            back.start()
            _pump(self.connection, beyond)
            back.join(5)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


class _Proxy(socketserver.ThreadingTCPServer):
    """Speaks TLS where it has a ``context``."""

    daemon_threads = True
    context: ssl.SSLContext | None = None
    answers_plainly = False

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.answers_plainly:
            request.recv(1)
            request.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            return
        if self.context is None:
            super().finish_request(request, client_address)
            return
        with self.context.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of the tests."""


@pytest.fixture
def proxy() -> Iterator[_Proxy]:
    with _Proxy(("127.0.0.1", 0), _Relay) as server:
        server.seen = []  # type: ignore[attr-defined]
        server.refusal = ""  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub whose certificate only the tests' own authority vouches for."""
    with serve(tls=authority().server) as running:
        running.add("acme/model", {"config.json": b"{}"})
        yield running


def files_of(hub: Hub) -> int:
    return len(HubSource(hub.url).resolve("hf://acme/model", None, None).files)


def test_tls_trusts_what_ssl_cert_file_names(
    hub: Hub, proxy: socketserver.ThreadingTCPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown authority is refused with advice; named in SSL_CERT_FILE it is trusted, also through a proxy's tunnel."""
    with pytest.raises(SourceError, match="not trusted") as caught:
        files_of(hub)
    assert "SSL_CERT_FILE" in caught.value.detail
    monkeypatch.setenv("SSL_CERT_FILE", str(authority().certificates))
    assert files_of(hub) == 1
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:pass%21@127.0.0.1:{proxy.server_address[1]}")
    assert files_of(hub) == 1
    ((first, headers),) = proxy.seen  # type: ignore[attr-defined]
    assert first.startswith("CONNECT 127.0.0.1:")
    assert headers["proxy-authorization"] == "Basic dXNlcjpwYXNzIQ=="


def test_a_proxy_is_spoken_to_by_tls_where_its_url_says_so(
    hub: Hub, proxy: _Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through its tunnel by TLS within TLS, however much comes; what it is asked, and the login there, nobody overhears."""
    proxy.context = authority().server
    large = noise(3 * 2**20 + 1)
    hub.add("acme/large", {"w.bin": large})
    monkeypatch.setenv("SSL_CERT_FILE", str(authority().certificates))
    named = f"https://user:pass%21@127.0.0.1:{proxy.server_address[1]}"
    for name in ("HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(name, named)
    source = HubSource(hub.url)
    resolved = source.resolve("hf://acme/large", None, None)
    with source.open(resolved, resolved.files[0], 0, None) as pieces:
        assert b"".join(pieces) == large
    with HttpClient().get("http://hub.example/x?y=1", "it", {}) as response:
        assert response.read(10) == b"{}"
    asked = [first for first, _ in proxy.seen]  # type: ignore[attr-defined]
    assert {first.split()[0] for first in asked[:-1]} == {"CONNECT"}
    assert asked[-1] == "GET http://hub.example/x?y=1 HTTP/1.1"
    logins = {headers["proxy-authorization"] for _, headers in proxy.seen}  # type: ignore[attr-defined]
    assert logins == {"Basic dXNlcjpwYXNzIQ=="}


def test_whose_certificate_is_not_trusted_is_told(
    hub: Hub, proxy: _Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy's, which is asked nothing then; and one that doesn't speak TLS is told with what to write."""
    port = proxy.server_address[1]
    monkeypatch.setenv("HTTPS_PROXY", f"https://user:s3cr3t@127.0.0.1:{port}")
    proxy.context = authority().server
    with pytest.raises(SourceError, match=f"certificate of the proxy 127.0.0.1:{port} is not"):
        files_of(hub)
    assert proxy.seen == []  # type: ignore[attr-defined]
    proxy.context = None
    proxy.answers_plainly = True
    monkeypatch.setenv("SSL_CERT_FILE", str(authority().certificates))
    with pytest.raises(SourceUnreachable, match="through the proxy") as caught:
        files_of(hub)
    assert "write http://" in caught.value.detail
    assert "s3cr3t" not in str(caught.value)


def test_a_tunnel_that_breaks_off_within_is_no_whole_file(
    hub: Hub, proxy: _Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the outer connection is the end of what is in it."""
    proxy.context = authority().server
    monkeypatch.setenv("SSL_CERT_FILE", str(authority().certificates))
    monkeypatch.setenv("HTTPS_PROXY", f"https://127.0.0.1:{proxy.server_address[1]}")
    source = HubSource(hub.url)
    resolved = source.resolve("hf://acme/model", None, None)
    hub.faults = [Fault("cut", "config.json", at=1)]
    with source.open(resolved, resolved.files[0], 0, None) as pieces, pytest.raises(SourceCut):
        list(pieces)


@pytest.mark.parametrize("name", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_tls_trusts_what_other_programs_trust(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A file or a directory of certificates named for other programs is trusted too; what is none is an error that says where."""
    monkeypatch.setenv(name, str(authority().certificates))
    assert files_of(hub) == 1
    monkeypatch.setenv(name, str(authority().directory))
    assert files_of(hub) == 1
    for wrong in (tmp_path / "none.pem", tmp_path / "text.pem"):
        (tmp_path / "text.pem").write_text("no certificate")
        monkeypatch.setenv(name, str(wrong))
        with pytest.raises(SourceError, match=f"{name} names {wrong}, which can't be read"):
            files_of(hub)


def test_plain_http_goes_through_its_proxy(
    proxy: socketserver.ThreadingTCPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP_PROXY is asked for the whole URL, unless NO_PROXY names the host."""
    monkeypatch.setenv("http_proxy", f"127.0.0.1:{proxy.server_address[1]}")
    with HttpClient().get("http://hub.example/x?y=1", "it", {}) as response:
        assert response.read(10) == b"{}"
    assert proxy.seen[0][0] == "GET http://hub.example/x?y=1 HTTP/1.1"  # type: ignore[attr-defined]
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serve() as hub:
        hub.add("acme/model", {"config.json": b"{}"})
        assert HubSource(hub.url).resolve("hf://acme/model", None, None).files
    assert len(proxy.seen) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("http://127.0.0.1:99999", "is not the URL of a proxy"),
        ("http://[::1", "is not the URL of a proxy"),
        ("http://:80", "is not the URL of a proxy"),
        ("ftp://127.0.0.1:80", "is not the URL of a proxy"),
        ("socks5h://u:s3cr3t@127.0.0.1:9", "names a SOCKS proxy"),
    ],
)
@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
def test_a_proxy_that_can_not_be_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    """What names it is said, and nothing of what it says; what needs no proxy is reached."""
    monkeypatch.setenv(name, value)
    with serve() as hub:
        hub.add("acme/model", {"config.json": b"{}"})
        with pytest.raises(SourceError, match=f"^{name} {says}") as caught:
            files_of(hub)
        assert (caught.value.code, "s3cr3t" in str(caught.value)) == ("unusable-proxy", False)
        assert hub.seen == []
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert files_of(hub) == 1


def test_what_a_proxy_refuses_is_told_of_the_proxy(
    proxy: socketserver.ThreadingTCPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with its variable where it isn't there, makes no tunnel or wants a login; its password never is."""
    port = proxy.server_address[1]
    proxy.refusal = "407 Login"  # type: ignore[attr-defined]
    monkeypatch.setenv("ALL_PROXY", f"http://user:s3cr3t@127.0.0.1:{port}")
    named = f"the proxy 127.0.0.1:{port}"
    with pytest.raises(SourceCut, match=r"can't reach hub[.]example through") as tunnel:
        HttpClient().get("https://hub.example/x", "it", {}).__enter__()
    with pytest.raises(SourceError, match="wants a login") as plain:
        HttpClient().get("http://hub.example/x", "it", {}).__enter__()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        gone = f"127.0.0.1:{probe.getsockname()[1]}"
        monkeypatch.setenv("ALL_PROXY", f"http://user:s3cr3t@{gone}")
        with pytest.raises(SourceCut, match=f"through the proxy {gone}") as nobody:
            HttpClient().get("http://hub.example/x", "it", {}).__enter__()

    assert f"{named} (it answered 407)" in tunnel.value.summary
    assert named in plain.value.summary
    for error in (tunnel.value, plain.value, nobody.value):
        assert error.detail.startswith("ALL_PROXY names it")
        assert "s3cr3t" not in str(error)


def test_each_kind_of_url_has_its_proxy_before_that_for_all(
    proxy: socketserver.ThreadingTCPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ALL_PROXY is used where nothing is said of the URL's kind."""
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", f"127.0.0.1:{proxy.server_address[1]}")
    with HttpClient().get("http://hub.example/x", "it", {}) as response:
        assert response.read(10) == b"{}"
    with pytest.raises(SourceError, match="ALL_PROXY names a SOCKS proxy"):
        HttpClient().get("https://hub.example/x", "it", {}).__enter__()


@pytest.mark.parametrize(
    "value",
    ["nonsense", "http://[::1", "https://", "http://h:99999", "https://u:pw@h", "https://h?k=pw"],
)
def test_an_endpoint_that_is_no_url_is_told(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """HF_ENDPOINT is named, and nobody is asked. What a password may be in is neither shown nor remembered as a server."""
    monkeypatch.setenv("HF_ENDPOINT", value)
    with pytest.raises(SourceError, match=r"^HF_ENDPOINT is not the URL of a server") as caught:
        HubSource()
    assert "pw" not in str(caught.value)


def test_nobody_there_is_an_error_without_the_url() -> None:
    """A refused connection names the host and the thing, and never a query that might be a signature."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/x?X-Amz-Signature=s3cr3t"
        with pytest.raises(SourceCut, match="hf://a/b: can't reach") as caught:
            HttpClient().get(url, "hf://a/b", {}).__enter__()
    assert "s3cr3t" not in str(caught.value)


def test_connections_are_used_again() -> None:
    """Requests one after another share a connection; a server that closed it meanwhile is no error."""
    with serve() as hub:
        hub.add("acme/model", {"config.json": b"{}"})
        source = HubSource(hub.url)
        for _ in range(3):
            source.resolve("hf://acme/model", None, None)
        assert hub.connections == 1
        hub.keep_alive = False
        for _ in range(3):
            source.resolve("hf://acme/model", None, None)


def test_retry_after_is_held_against_the_servers_clock() -> None:
    """Seconds are seconds; a date counts from the server's own Date; nonsense and the past are no wait."""

    def headers(**values: str) -> Headers:
        return Headers({name.lower().replace("_", "-"): one for name, one in values.items()})

    assert retry_after(headers(Retry_After="12")) == 12
    far = headers(Retry_After=http_date(100_060), Date=http_date(100_000))
    assert retry_after(far) == pytest.approx(60, abs=1)
    assert retry_after(headers(Retry_After=http_date(-60))) == 0
    assert retry_after(headers(Retry_After="soon")) is None
    assert retry_after(headers(RateLimit='"api";r=0;t=55', Retry_After="1")) == 55
    assert retry_after(headers(RateLimit='"api"; r=3; t=55', Retry_After="1")) == 1
    assert retry_after(headers(RateLimit="soon")) is None
    assert retry_after(headers()) is None
