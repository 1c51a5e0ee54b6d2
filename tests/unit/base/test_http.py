"""The HTTP client against a server on loopback: framing, connections, redirects, proxies, TLS, limits."""

# ruff: noqa: N802  the names of handlers are the library's

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from tests.support.servers.certificate_authority import authority
from tests.support.servers.hub import FaultyHandler, listen
from tests.support.servers.raw_server import RawRequest, raw_response, serve_responses
from trainctl.base.failure import PeerAuthError
from trainctl.base.http import (
    HttpClient,
    HttpError,
    HttpInterrupted,
    HttpUnreachable,
    UnsafeRedirect,
    UntrustedCertificate,
    UnusableProxy,
)

CLOSED = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def client() -> HttpClient:
    return HttpClient(read_timeout=5)


def get(client: HttpClient, url: str, **headers: str) -> bytes:
    with client.request("GET", url, headers) as response:
        return response.read_all(2**20)


@pytest.mark.parametrize(
    "answer",
    [
        raw_response(b"0123456789"),
        [CHUNKED, b"4;x=y\r\n0123\r\n6\r\n456789\r\n0\r\nT: 1\r\n\r\n"],
        [CLOSED, b"0123456789"],
        [b"HTTP/1.1 100 Continue\r\n\r\n", raw_response(b"0123456789")],
    ],
)
def test_a_body_is_read_however_it_is_framed(
    client: HttpClient, answer: bytes | list[bytes]
) -> None:
    """By length, in chunks, up to the end of the connection, or behind an interim response."""
    with serve_responses(lambda heard: answer) as server:
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
    ],
)
def test_a_short_or_malformed_body_is_cut(client: HttpClient, answer: list[bytes]) -> None:
    """Neither counts as the end of the body."""
    with serve_responses(lambda heard: answer) as server:
        with pytest.raises(HttpInterrupted):
            get(client, server.url)
        with client.request("GET", server.url) as response, pytest.raises(HttpInterrupted):
            response.fill(memoryview(bytearray(8)))


def test_a_request_can_not_smuggle_another(client: HttpClient) -> None:
    """Line ends in a path or header are refused before anything is sent."""
    with serve_responses(lambda heard: raw_response()) as server:
        for url, value in ((f"{server.url}/a b", "x"), (server.url, "x\r\nY: z")):
            with pytest.raises((ValueError, HttpError)):
                get(client, url, A=value)
        assert server.heard == []


def test_connections_are_reused_and_reopened(client: HttpClient) -> None:
    """Also after HEAD, an error's short body and a redirect; a connection that the server closed is opened again."""
    opened: list[int] = []

    class Counting(FaultyHandler):
        closing = threading.Event()

        def setup(self) -> None:
            opened.append(1)
            super().setup()

        def do_HEAD(self) -> None:
            self.answer(200, b"")

        def do_GET(self) -> None:
            if self.path == "/away":
                self.answer(302, b"gone", {"Location": "/"})
            else:
                self.answer(200, b"x")
                self.close_connection = self.path == "/last"

    with listen(Counting) as url:
        for path in ("/", "/away", "/", "/last", "/"):
            assert get(client, url + path) == b"x"
        with client.request("HEAD", url):
            pass
        get(client, url)
    assert len(opened) == 2


def test_a_body_is_sent_and_sent_again(client: HttpClient) -> None:
    """On a new connection if the server closed the kept one meanwhile."""
    bodies: list[bytes] = []

    class Taking(FaultyHandler):
        closing = threading.Event()

        def do_PUT(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(200, b"")
            self.close_connection = True

    with listen(Taking) as url:
        for body in (b"the whole", [b"in ", b"blocks"]):
            with client.request("PUT", url, {"Content-Length": "9"}, body=body) as response:
                response.drain()
    assert bodies == [b"the whole", b"in blocks"]


def test_nothing_there_is_unreachable(client: HttpClient) -> None:
    """The host is named, and never the URL, which may hold a signature."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/x?Signature=s3cr3t"
        with pytest.raises(HttpUnreachable) as caught:
            get(client, url)
    assert "127.0.0.1" in caught.value.reason
    assert "s3cr3t" not in str(caught.value)


def test_silence_ends_a_request() -> None:
    """Before the response it is unreachable, within the body a cut; a request may allow less than its client."""
    release = threading.Event()

    def tell(heard: RawRequest) -> Iterator[bytes]:
        if heard.target == "/body":
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
            client.request("GET", f"{server.url}/body", read_timeout=0.05) as response,
            pytest.raises(HttpInterrupted, match="stalled"),
        ):
            list(response.iter_bytes())
        release.set()


@pytest.mark.parametrize(
    "begin", [b"HTTP/1.1 200 OK\r\nX: ", raw_response(b"", Content_Length="100000")]
)
def test_a_trickle_ends_a_request(begin: bytes) -> None:
    """Although each byte comes in time."""
    ended = threading.Event()

    def tell(heard: RawRequest) -> Iterator[bytes]:
        yield begin
        while not ended.wait(0.01):
            yield b"x"

    with serve_responses(tell) as server, pytest.raises(HttpError) as caught:
        get(HttpClient(read_timeout=0.2), server.url)
    ended.set()
    assert isinstance(caught.value, HttpInterrupted if b"Length" in begin else HttpUnreachable)


def test_abort_wakes_who_waits(client: HttpClient) -> None:
    """Long before the silence is over."""
    asked = threading.Event()
    caught: list[HttpError] = []

    def tell(heard: RawRequest) -> Iterator[bytes]:
        asked.set()
        yield b""
        ended.wait(10)

    def ask() -> None:
        try:
            get(client, server.url)
        except HttpError as error:
            caught.append(error)

    ended = threading.Event()
    with serve_responses(tell) as server:
        thread = threading.Thread(target=ask)
        thread.start()
        assert asked.wait(10)
        client.abort()
        thread.join(4)
        ended.set()
    assert len(caught) == 1


class TestRedirects:
    def test_secrets_stay_with_their_host(self, client: HttpClient) -> None:
        """They are not sent to another port, and not again when that one sends back."""
        with serve_responses(lambda heard: raw_response(b"x")) as home:

            def back(heard: RawRequest) -> bytes:
                return raw_response(status="302 Found", Location=f"{home.url}/back")

            def away(heard: RawRequest) -> bytes:
                there = {"/": "/same", "/same": f"{other.url}/"}
                return raw_response(status="307 Go", Location=there[heard.target])

            with (
                serve_responses(back) as other,
                serve_responses(away) as first,
                client.request("GET", first.url + "/", secret_headers={"A": "s"}) as found,
            ):
                assert found.url == f"{home.url}/back"
            assert [one.headers.get("a") for one in first.heard] == ["s", "s"]
            assert [one.headers.get("a") for one in (*other.heard, *home.heard)] == [None, None]

    @pytest.mark.parametrize(
        ("location", "says"),
        [("/", "loop"), ("ftp://x/", "less secure"), ("http://[", "invalid"), ("", "without")],
    )
    def test_unsafe_ones_are_refused(self, client: HttpClient, location: str, says: str) -> None:
        """Circles, other schemes, and what is no URL."""
        with (
            serve_responses(
                lambda heard: raw_response(status="302 Found", Location=location)
            ) as server,
            pytest.raises(UnsafeRedirect, match=says),
        ):
            get(client, f"{server.url}/")

    def test_an_endless_chain_is_refused(self, client: HttpClient) -> None:
        """After ten."""
        with serve_responses(
            lambda one: raw_response(status="302 Found", Location=f"{one.target}x")
        ) as server:
            with pytest.raises(UnsafeRedirect):
                get(client, f"{server.url}/")
            assert len(server.heard) == 11

    def test_https_never_leads_to_http(
        self, client: HttpClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is asked there."""
        monkeypatch.setenv("SSL_CERT_FILE", str(authority().certificates))
        with serve_responses(lambda heard: raw_response(b"x")) as plain:

            class Sending(FaultyHandler):
                closing = threading.Event()

                def do_GET(self) -> None:
                    self.answer(302, b"", {"Location": plain.url})

            with listen(Sending, authority().server) as url, pytest.raises(UnsafeRedirect):
                get(client, url)
            assert plain.heard == []


class TestTls:
    @pytest.fixture
    def url(self) -> Iterator[str]:
        class Answering(FaultyHandler):
            closing = threading.Event()

            def do_GET(self) -> None:
                self.answer(200, b"secured")

        with listen(Answering, authority().server) as url:
            yield url

    def test_an_unknown_authority_is_refused(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Unless SSL_CERT_FILE names it."""
        with pytest.raises(UntrustedCertificate) as caught:
            get(HttpClient(), url)
        assert "SSL_CERT_FILE" in caught.value.advice
        monkeypatch.setenv("SSL_CERT_FILE", str(authority().certificates))
        assert get(HttpClient(), url) == b"secured"

    def test_a_pinned_certificate_is_the_only_one(self, url: str) -> None:
        """Whoever signed it."""
        host, _, port = url.rpartition("/")[2].partition(":")
        shown = ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port))))
        assert get(HttpClient(pin=hashlib.sha256(shown).hexdigest()), url) == b"secured"
        with pytest.raises(PeerAuthError):
            get(HttpClient(pin="0" * 64), url)


class TestProxies:
    def test_http_is_asked_for_by_absolute_url(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the login that its URL holds; hosts in NO_PROXY are reached directly."""
        with (
            serve_responses(lambda heard: raw_response(b"proxied")) as proxy,
            serve_responses(lambda h: raw_response()) as direct,
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
        """TLS lies within it, so the proxy reads nothing."""

        class Answering(FaultyHandler):
            closing = threading.Event()

            def do_GET(self) -> None:
                self.answer(200, b"x" * 100_000)

        monkeypatch.setenv("SSL_CERT_FILE", str(authority().certificates))
        with listen(Answering, authority().server) as url, tunnel() as (port, asked):
            monkeypatch.setenv("all_proxy", f"http://u:p@127.0.0.1:{port}")
            assert len(get(HttpClient(), url)) == 100_000
        assert asked[0].startswith(f"CONNECT {url[8:]} HTTP/1")
        assert "Proxy-Authorization: Basic dTpw" in asked

    def test_a_login_that_is_required_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The variable is named, and its password never shown."""
        with serve_responses(lambda heard: raw_response(status="407 Login")) as proxy:
            monkeypatch.setenv("ALL_PROXY", proxy.url.replace("//", "//u:s3cr3t@"))
            with pytest.raises(UnusableProxy, match="login") as caught:
                get(HttpClient(), "https://hub.example/")
        assert "ALL_PROXY" in caught.value.advice
        assert "s3cr3t" not in caught.value.reason + caught.value.advice

    @pytest.mark.parametrize(
        "value",
        ["http://[::1", "http://:80", "ftp://h:1", "socks5h://u:s3cr3t@h:9", "https://h:9"],
    )
    def test_other_kinds_are_refused(self, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
        """SOCKS and TLS among them; without showing the value."""
        monkeypatch.setenv("HTTP_PROXY", value)
        with pytest.raises(UnusableProxy, match=r"^HTTP_PROXY names") as caught:
            get(HttpClient(), "http://hub.example/")
        assert "s3cr3t" not in str(caught.value)


class tunnel:  # noqa: N801  used as a function
    """A proxy for one CONNECT; the lines that it was asked."""

    def __enter__(self) -> tuple[int, list[str]]:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._asked: list[str] = []
        threading.Thread(target=self._serve, daemon=True).start()
        return self._server.getsockname()[1], self._asked

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _serve(self) -> None:
        client, _ = self._server.accept()
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        self._asked += head.decode().split("\r\n")
        host, _, port = self._asked[0].split()[1].partition(":")
        beyond = socket.create_connection((host, int(port)))
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        threading.Thread(target=_pump, args=(beyond, client), daemon=True).start()
        _pump(client, beyond)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with source:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return
