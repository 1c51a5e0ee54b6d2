"""Errors of HTTP requests that got no complete response. A status, whatever it is, is not an error here."""

from __future__ import annotations


class HttpError(OSError):
    """A request failed. ``reason`` never holds the URL; ``advice`` says what to do, or is empty."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice


class HttpUnreachable(HttpError):
    """No connection to the server, or no response in time."""


class HttpInterrupted(HttpError):
    """The connection broke before the response was complete."""


class HttpStalled(HttpInterrupted):
    """The server sent nothing, or hardly anything, of the rest of a response for too long."""


class UntrustedCertificate(HttpError):
    """The server's certificate could not be verified."""


class UnusableProxy(HttpError):
    """The environment names a proxy that can't be used, or one that requires a login."""


class UnsafeRedirect(HttpError):
    """A server redirects to a place where the request must not go."""


class HostThrottled(HttpError):
    """The host asked earlier for a pause, which lasts ``retry_after`` more seconds. No request was made."""

    def __init__(self, host: str, retry_after: float) -> None:
        super().__init__(f"{host} asked for a pause")
        self.retry_after = retry_after
