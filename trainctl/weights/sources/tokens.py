"""Access tokens: what a credential is exchanged for, or is by itself, sent with requests until it ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from trainctl.errors import SourceDenied
from trainctl.objects.access import Access, AzurePrincipal, Bearer, ServiceAccount, access_of
from trainctl.objects.azure import principal_token
from trainctl.objects.client import is_over
from trainctl.objects.google import service_account_token
from trainctl.spi.sources import Credential
from trainctl.weights.sources.http import HttpClient, Response


class Token:
    """A credential as an access token, a new one when the old one has ended."""

    def __init__(self, scheme: str, credential: Credential, environ: Mapping[str, str]) -> None:
        self._scheme = scheme
        self._credential = credential
        self._environ = environ
        self._lock = threading.Lock()
        self._bearer: Bearer | None = None
        self._refused = False
        self.origin = credential.origin

    @contextmanager
    def get(
        self, http: HttpClient, url: str, what: str, headers: Mapping[str, str]
    ) -> Iterator[Response]:
        """One request with it, and one more with a new one where the old one is refused before its time."""
        token = self.value()
        try:
            with http.get(url, what, headers, token) as response:
                yield response
                return
        except SourceDenied as error:
            if not self.refused(token):
                raise self._explained(error) from None
        try:
            with http.get(url, what, headers, self.value()) as response:
                yield response
        except SourceDenied as error:
            raise self._explained(error) from None

    def value(self) -> str:
        """What is sent. SourceDenied where nobody gives any."""
        with self._lock:
            if self._bearer is None or is_over(self._bearer):
                self._bearer = self._next()
                self._refused = False
            return self._bearer.token

    def refused(self, token: str) -> bool:
        """Forget a token that was refused; whether there can be another."""
        with self._lock:
            renewable = self._bearer is not None and self._bearer.ends is not None
            if renewable and self._bearer is not None and self._bearer.token == token:
                self._bearer, self._refused = None, True
            return renewable

    def _next(self) -> Bearer:
        known = self._credential
        access = access_of(self._scheme, known.value, known.origin)
        if isinstance(access, Bearer) and known.renew and (self._refused or is_over(access)):
            self._credential = known = known.renew()
        elif not isinstance(access, Bearer):
            known = self._exchanged(access)
        found = access_of(self._scheme, known.value, known.origin)
        if not isinstance(found, Bearer):
            raise SourceDenied(f"{known.origin} gives no token")
        return found

    def _exchanged(self, access: Access) -> Credential:
        if isinstance(access, ServiceAccount):
            return service_account_token(access.document, self.origin)
        if isinstance(access, AzurePrincipal):
            return principal_token(access, self.origin, self._environ)
        return self._credential

    def _explained(self, error: SourceDenied) -> SourceDenied:
        came = f"The credential came from {self.origin}. "
        return SourceDenied(error.summary, f"{came}{error.detail}", code=error.code)


class Tokens:
    """One for each credential of a scheme; safe to use from many threads."""

    def __init__(self, scheme: str, environ: Mapping[str, str] = os.environ) -> None:
        self._scheme = scheme
        self._environ = environ
        self._lock = threading.Lock()
        self._known: dict[str, Token] = {}

    def of(self, credential: Credential) -> Token:
        """The credential's."""
        with self._lock:
            made = Token(self._scheme, credential, self._environ)
            return self._known.setdefault(credential.value, made)
