"""Errors of HTTP requests without a complete response; a status is not an error."""

from __future__ import annotations

from trainctl.errors import NodeError


class HttpError(OSError):
    """A failed request; ``reason`` hides the URL, ``advice`` may be empty."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice


class HttpUnreachable(HttpError):
    """No connection to the server, or no response in time."""


class HttpInterrupted(HttpError):
    """The connection broke before the response was complete."""


class HttpStalled(HttpInterrupted):
    """The rest of a response arrives too slowly or not at all."""


class UntrustedCertificate(HttpError):
    """The server's certificate could not be verified."""


class UnusableProxy(HttpError):
    """The proxy of the environment is unsupported or requires a login."""


class UnsafeRedirect(HttpError):
    """A redirect that must not be followed."""


class HostThrottled(HttpError):
    """The host's pause lasts ``retry_after`` more seconds; no request was made."""

    def __init__(self, host: str, retry_after: float) -> None:
        super().__init__(f"{host} asked clients to pause")
        self.retry_after = retry_after


class PeerAuthError(NodeError):
    """A server's certificate is not the pinned one; nothing was sent to it."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} shows another certificate than the server that was started there",
            "Nothing was sent to it. The connection may be intercepted, or another program listens there.",
        )


class NoReachableAddress(NodeError):
    """A server has no address that this host can reach."""

    def __init__(self, summary: str) -> None:
        super().__init__(summary, "The other host has no address that this host can reach.")
