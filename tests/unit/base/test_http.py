"""The HTTP client against a server on loopback: framing, connections, redirects, proxies, TLS, limits."""

# ruff: noqa: N802  the names of handlers are the library's

from __future__ import annotations

import gc
import hashlib
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.servers.certificate_authority import authority
from tests.support.servers.hub import FaultyHandler, listen
from tests.support.servers.raw_server import RawRequest, raw_response, serve_responses
from trainctl.base.http import (
    HttpClient,
    HttpError,
    HttpInterrupted,
    HttpUnreachable,
    UnsafeRedirect,
    UntrustedCertificate,
    UnusableProxy,
)
from trainctl.base.network.http_errors import PeerAuthError

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def client() -> HttpClient:
    return HttpClient(read_timeout=5)


class Handler(FaultyHandler):
    """Answers GET with ``body``."""

    body = b"secured"

    def do_GET(self) -> None:
        self.answer(200, self.body)


def get(client: HttpClient, url: str, **headers: str) -> bytes:
    with client.request("GET", url, headers) as response:
        return response.read_all(2**20)


@pytest.mark.parametrize(
    "answer",
    [
        raw_response(b"0123456789"),
        [CHUNKED, b"4;x=y\r\n0123\r\n6\r\n456789\r\n0\r\nT: 1\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\n\r\n", b"0123456789"],
        [b"HTTP/1.1 100 Continue\r\n\r\n", raw_response(b"0123456789")],
    ],
    ids=["length", "chunks", "end of connection", "interim response"],
)
def test_a_body_is_read_in_every_framing(client: HttpClient, answer: bytes | list[bytes]) -> None:
    with serve_responses(lambda request: answer) as server:
        with client.request("GET", server.url) as response:
            view = memoryview(bytearray(4))
            response.fill(view)
            rest = b"".join(response.iter_bytes())
        assert (response.status, bytes(view) + rest) == (200, b"0123456789")


@pytest.mark.parametrize(
    "answer",
    [
        [raw_response(b"abc", Content_Length="10")],
        [CHUNKED, b"4\r\nab"],
        [CHUNKED, b"zz\r\nab\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 1x\r\n\r\na"],
        [b"SSH-2.0-OpenSSH\r\n\r\n"],
        [b""],
    ],
)
def test_a_short_or_malformed_response_is_interrupted(
    client: HttpClient, answer: list[bytes]
) -> None:
    with serve_responses(lambda request: answer) as server:
        with pytest.raises(HttpInterrupted):
            get(client, server.url)
        with pytest.raises(HttpInterrupted), client.request("GET", server.url) as response:
            response.fill(memoryview(bytearray(8)))


def test_line_ends_in_a_request_are_refused_before_it_is_sent(client: HttpClient) -> None:
    with serve_responses(lambda request: raw_response()) as server:
        for url, value in ((f"{server.url}/a b", "x"), (server.url, "x\r\nY: z")):
            with pytest.raises((ValueError, HttpError)):
                get(client, url, A=value)
        assert server.heard == []


def test_connections_are_reused_and_reopened(client: HttpClient) -> None:
    """After HEAD, short bodies and redirects; not after an unread body, or if the server closed it."""
    opened: list[int] = []

    class Counting(Handler):
        def setup(self) -> None:
            opened.append(1)
            super().setup()

        def do_HEAD(self) -> None:
            self.answer(200, b"")

        def do_GET(self) -> None:
            if self.path == "/away":
                self.answer(302, b"gone", {"Location": "/"})
            else:
                self.answer(200, b"x" * (2**20 if self.path == "/large" else 1))
                self.close_connection = self.path == "/last"

    with listen(Counting) as url:
        for path in ("/", "/away", "/", "/last", "/"):
            assert get(client, url + path) == b"x"
        with client.request("HEAD", url):
            pass
        assert len(opened) == 2
        with client.request("GET", f"{url}/large") as response:
            assert response.read(1) == b"x"
        assert get(client, url) == b"x"
        assert len(opened) == 3


def test_a_body_is_sent_again_if_the_server_closed_the_connection(client: HttpClient) -> None:
    bodies: list[bytes] = []

    class Taking(Handler):
        def do_PUT(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(200, b"")
            self.close_connection = True

    with listen(Taking) as url:
        for body in (b"the whole", [b"in ", b"blocks"]):
            with client.request("PUT", url, {"Content-Length": "9"}, body=body) as response:
                response.drain()
    assert bodies == [b"the whole", b"in blocks"]


def test_an_unreachable_host_is_named_without_the_url(client: HttpClient) -> None:
    """Which may contain a signature."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/x?Signature=s3cr3t"
        with pytest.raises(HttpUnreachable) as caught:
            get(client, url)
    assert "127.0.0.1" in caught.value.reason
    assert "s3cr3t" not in str(caught.value)


def test_silence_ends_a_request() -> None:
    """A request may allow less of it than its client."""
    release = threading.Event()

    def tell(request: RawRequest) -> Iterator[bytes]:
        if request.target == "/body":
            yield raw_response(b"abc", Content_Length="10")
        release.wait(10)

    client = HttpClient(read_timeout=10)
    with serve_responses(tell) as server:
        with (
            pytest.raises(HttpUnreachable, match="did not respond"),
            client.request("GET", f"{server.url}/", read_timeout=0.05),
        ):
            pass
        with (
            client.request("GET", f"{server.url}/body", read_timeout=1) as response,
            pytest.raises(HttpInterrupted, match="stalled"),
        ):
            list(response.iter_bytes())
        release.set()


@pytest.mark.parametrize(
    ("begin", "error"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", HttpUnreachable),
        (raw_response(b"", Content_Length="100000"), HttpInterrupted),
    ],
)
def test_a_trickle_ends_a_request(begin: bytes, error: type[HttpError]) -> None:
    """Although each byte comes in time."""
    ended = threading.Event()

    def tell(request: RawRequest) -> Iterator[bytes]:
        yield begin
        while not ended.wait(0.01):
            yield b"x"

    with serve_responses(tell) as server, pytest.raises(error):
        get(HttpClient(read_timeout=1), server.url)
    ended.set()


def test_abort_ends_a_waiting_request() -> None:
    asked, ended = threading.Event(), threading.Event()
    caught: list[HttpError] = []
    client = HttpClient(read_timeout=600)

    def tell(request: RawRequest) -> Iterator[bytes]:
        asked.set()
        yield b""
        ended.wait(60)

    def ask() -> None:
        try:
            get(client, server.url)
        except HttpError as error:
            caught.append(error)

    with serve_responses(tell) as server:
        thread = threading.Thread(target=ask)
        thread.start()
        assert asked.wait(30)
        client.abort()
        thread.join(30)
        ended.set()
    assert len(caught) == 1


class TestRedirects:
    def test_secret_headers_stay_with_their_host(self, client: HttpClient) -> None:
        """They are not sent to another port, and not again when that one redirects back."""
        with serve_responses(lambda request: raw_response(b"x")) as home:
            back = raw_response(status="302 Found", Location=f"{home.url}/back")

            def away(request: RawRequest) -> bytes:
                there = {"/": "/same", "/same": f"{other.url}/"}
                return raw_response(status="307 Go", Location=there[request.target])

            with (
                serve_responses(lambda request: back) as other,
                serve_responses(away) as first,
                client.request("GET", first.url + "/", secret_headers={"A": "s"}) as response,
            ):
                assert response.url == f"{home.url}/back"
            assert [heard.headers.get("a") for heard in first.heard] == ["s", "s"]
            assert [heard.headers.get("a") for heard in (*other.heard, *home.heard)] == [None, None]

    @pytest.mark.parametrize(
        ("location", "reason"),
        [("/", "loop"), ("ftp://x/", "less secure"), ("http://[", "invalid"), ("", "without")],
    )
    def test_unsafe_ones_are_refused(self, client: HttpClient, location: str, reason: str) -> None:
        answer = raw_response(status="302 Found", Location=location)
        with (
            serve_responses(lambda request: answer) as server,
            pytest.raises(UnsafeRedirect, match=reason),
        ):
            get(client, f"{server.url}/")

    def test_https_never_leads_to_http(
        self, client: HttpClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority().certificates))
        with serve_responses(lambda request: raw_response(b"x")) as plain:

            class Sending(Handler):
                def do_GET(self) -> None:
                    self.answer(302, b"", {"Location": plain.url})

            with listen(Sending, authority().server) as url, pytest.raises(UnsafeRedirect):
                get(client, url)
            assert plain.heard == []


def test_an_unknown_authority_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless SSL_CERT_FILE names it."""
    with listen(Handler, authority().server) as url:
        with pytest.raises(UntrustedCertificate) as caught:
            get(HttpClient(), url)
        assert "SSL_CERT_FILE" in caught.value.advice
        monkeypatch.setenv("SSL_CERT_FILE", str(authority().certificates))
        assert get(HttpClient(), url) == b"secured"


def test_only_a_pinned_certificate_is_trusted() -> None:
    with listen(Handler, authority().server) as url:
        host, _, port = url.rpartition("/")[2].partition(":")
        shown = ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port))))
        assert get(HttpClient(pin=hashlib.sha256(shown).hexdigest()), url) == b"secured"
        with pytest.raises(PeerAuthError):
            get(HttpClient(pin="0" * 64), url)


class TestProxies:
    def test_http_is_asked_for_by_absolute_url(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the login of the proxy's URL; hosts in NO_PROXY are reached directly."""
        with (
            serve_responses(lambda request: raw_response(b"proxied")) as proxy,
            serve_responses(lambda request: raw_response()) as direct,
        ):
            monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//user:pass%21@"))
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            assert get(HttpClient(), "http://hub.example/x?y=1") == b"proxied"
            assert get(HttpClient(), direct.url) == b""
        (heard,) = proxy.heard
        assert heard.target == "http://hub.example/x?y=1"
        assert heard.headers["host"] == "hub.example"
        assert heard.headers["proxy-authorization"] == "Basic dXNlcjpwYXNzIQ=="

    def test_https_goes_through_a_tunnel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Large(Handler):
            body = b"x" * 100_000

        monkeypatch.setenv("SSL_CERT_FILE", str(authority().certificates))
        with listen(Large, authority().server) as url, tunnel() as (port, asked):
            monkeypatch.setenv("all_proxy", f"http://u:p@127.0.0.1:{port}")
            assert len(get(HttpClient(), url)) == 100_000
        assert asked[0].startswith(f"CONNECT {url[8:]} HTTP/1")
        assert "Proxy-Authorization: Basic dTpw" in asked

    def test_a_required_login_is_reported_without_the_password(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with serve_responses(lambda request: raw_response(status="407 Login")) as proxy:
            monkeypatch.setenv("ALL_PROXY", proxy.url.replace("//", "//u:s3cr3t@"))
            with pytest.raises(UnusableProxy, match="login") as caught:
                get(HttpClient(), "https://hub.example/")
        advice, reason = caught.value.advice, caught.value.reason
        assert "ALL_PROXY" in advice
        assert "s3cr3t" not in reason + advice
        del caught
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()  # before 3.11.4, http.client leaves the response of a refused tunnel open

    @pytest.mark.parametrize("value", ["http://[::1", "ftp://h:1", "socks5h://u:s3cr3t@h:9", "https://h:9"])  # fmt: skip
    def test_other_kinds_are_refused_without_their_value(
        self, monkeypatch: pytest.MonkeyPatch, value: str
    ) -> None:
        monkeypatch.setenv("HTTP_PROXY", value)
        with pytest.raises(UnusableProxy, match=r"^HTTP_PROXY names") as caught:
            get(HttpClient(), "http://hub.example/")
        assert "s3cr3t" not in str(caught.value)


@contextmanager
def tunnel() -> Iterator[tuple[int, list[str]]]:
    """A proxy for one CONNECT: its port, and the lines of the request."""
    asked: list[str] = []
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = server.accept()
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        asked.extend(head.decode().split("\r\n"))
        host, _, port = asked[0].split()[1].partition(":")
        beyond = socket.create_connection((host, int(port)))
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        threading.Thread(target=pump, args=(beyond, client), daemon=True).start()
        pump(client, beyond)

    threading.Thread(target=serve, daemon=True).start()
    with server:
        yield server.getsockname()[1], asked


def pump(source: socket.socket, sink: socket.socket) -> None:
    with source:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return
