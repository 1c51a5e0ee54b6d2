"""Google Cloud Storage's XML interface, which mirrors in its buckets are written by, in front of moto: no emulator speaks all of it.

Objects, listings and conditions are moto's; the headers that Google calls otherwise are renamed, and links are checked as Google checks them
(https://cloud.google.com/storage/docs/authentication/canonical-requests).
"""

from __future__ import annotations

import hashlib
import http.client
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tests.support.servers.buckets import KEY_ID, SECRET, moto
from tests.support.servers.clouds import service_account
from tests.support.servers.hub import FaultyHandler, listen
from trainctl.base import sigv4

_HOST = "storage.googleapis.com"
"""What links are signed for, wherever they lead."""
_EMPTY = hashlib.sha256(b"").hexdigest()


@dataclass
class GoogleXml:
    """A bucket ``models``, and the key of a service account that links to it are signed by."""

    url: str
    key: Mapping[str, str]
    refused: list[str]
    """Why links were not taken."""

    @property
    def document(self) -> str:
        """The key as Google hands it out."""
        return json.dumps(self.key)


@contextmanager
def google_xml() -> Iterator[GoogleXml]:
    with moto() as behind:
        google = GoogleXml("", service_account(), [])
        kept = {"google": google, "behind": urlsplit(behind.endpoint).netloc}
        with listen(type("Handler", (_Handler,), kept)) as google.url:
            yield google


class _Handler(FaultyHandler):
    google: GoogleXml
    behind: str

    def _handle(self) -> None:
        path, _, text = self.path.partition("?")
        query = parse_qsl(text, keep_blank_values=True)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return
        if any(name == "X-Goog-Signature" for name, _ in query):
            if not self._is_signed(path, query):
                self.google.refused.append(self.path)
                self._answer(403, {}, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
                return
            query = []
        self._pass_on(path, query, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815  the names are the library's

    def _pass_on(self, path: str, query: list[tuple[str, str]], body: bytes) -> None:
        headers = {
            name: value
            for name in ("Range", "Content-Type", "If-Match")
            if (value := self.headers.get(name))
        }
        if condition := self.headers.get("x-goog-if-generation-match"):
            assert condition == "0", "only what must not be there is asked for"
            headers["If-None-Match"] = "*"
        target = sigv4.RequestTarget(self.command, self.behind, path, query)
        key = sigv4.S3Credential(KEY_ID, SECRET)
        headers |= sigv4.signed_headers(target, key, "us-east-1", _EMPTY, 1_700_000_000.0, {})
        connection = http.client.HTTPConnection(self.behind, timeout=60)
        text = sigv4.quote_query(query)
        connection.request(self.command, path + (f"?{text}" if text else ""), body, headers)
        answer = connection.getresponse()
        data = answer.read()
        values = {
            name: value
            for name in ("ETag", "Last-Modified", "Content-Type", "Content-Range", "Content-Length")
            if (value := answer.headers.get(name))
        }
        if "ETag" in values:
            values["x-goog-generation"] = str(
                int(hashlib.md5(values["ETag"].encode()).hexdigest()[:15], 16)
            )
            if len(tag := values["ETag"].strip('"')) == 32:
                values["x-goog-hash"] = f"md5={b64encode(bytes.fromhex(tag)).decode()}"
        self._answer(answer.status, values, data)
        connection.close()

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name != "Content-Length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.command != "HEAD" else b"")

    def _is_signed(self, path: str, query: list[tuple[str, str]]) -> bool:
        values = dict(query)
        signature = bytes.fromhex(values["X-Goog-Signature"])
        rest = sorted((name, value) for name, value in query if name != "X-Goog-Signature")
        text = "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in rest)
        request = [self.command, path, text, f"host:{_HOST}\n", "host", "UNSIGNED-PAYLOAD"]
        digest = hashlib.sha256("\n".join(request).encode()).hexdigest()
        scope = values["X-Goog-Credential"].partition("/")[2]
        text = "\n".join(["GOOG4-RSA-SHA256", values["X-Goog-Date"], scope, digest])
        private = load_pem_private_key(self.google.key["private_key"].encode(), None)
        assert isinstance(private, RSAPrivateKey)
        try:
            private.public_key().verify(signature, text.encode(), PKCS1v15(), SHA256())
        except InvalidSignature:
            return False
        return values["X-Goog-Credential"].startswith(self.google.key["client_email"])
