"""Reaching a server that may have several addresses: the first that answers, and is the server, is the one from then on."""

from __future__ import annotations

import contextlib
import http.client
import os
import selectors
import socket
import sys
import time
from http import HTTPStatus
from typing import (
    Any,
    Dict,
    Generator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
    cast,
)
from urllib.parse import urlsplit

from trainctl.base.addresses import family, has_tls, is_loopback, is_private, network
from trainctl.base.failure import Failure, Stranger, Unreachable
from trainctl.node.transfer.proof import Question

CONNECT_SECONDS = 10.0
_OF_SEVERAL_SECONDS = 3.0
_HEAD_START_SECONDS = 0.25
"""What is likelier is tried alone for so long (RFC 8305, 5): where it answers nothing else is asked."""


class Place(NamedTuple):
    """One address of a server."""

    where: str
    host: str
    port: int
    encrypted: bool


class Server:
    """A server as a request describes it: ``urls``, ``token``, ``fingerprint`` for those of TLS, ``loopback``; Failure where the request is wrong.

    ``loopback`` names the network in which its URLs of loopback mean it; where it isn't told they always do.
    """

    def __init__(self, value: Mapping[str, Any]) -> None:
        self.token = value.get("token")
        if not isinstance(self.token, str) or not self.token:
            raise Failure("request", "the request to fetch over HTTP lacks its token")
        self._fingerprint = value.get("fingerprint")
        offered = _places(value.get("urls"))
        loopback = value.get("loopback")
        ours = loopback is None or loopback == network() != ""
        self._offered = " or ".join(one.where for one in offered)
        self._one_of_several = len(offered) > 1
        others = [one for one in offered if ours or not is_loopback(one.host)]
        self._places = [one for one in others if not one.encrypted or has_tls()]
        self._without = (
            f"{self._offered} is asked over TLS, and {sys.executable} here has none"
            if others
            else f"{self._offered} is another host's loopback"
        )
        self._known: Optional[Place] = None
        for place in offered:
            if place.encrypted and not isinstance(self._fingerprint, str):
                raise Failure("request", f"{place.where} is asked over https without a fingerprint")
            if not (place.encrypted or is_private(place.host)):
                raise Failure("request", f"{place.where} is asked without TLS, and isn't private")
        self.reached = False
        """Whether it ever answered."""

    @property
    def where(self) -> str:
        """In words."""
        return self._known.where if self._known else self._offered

    def connect(self) -> socket.socket:
        """A connection to the server and to nobody else, by the address that did before, or by whichever does first.

        OSError where there is none, socket.timeout if any address was silent, Stranger if all are somebody else's, Unreachable
        if none can be asked from here.
        """
        if not self._places:
            raise Unreachable(self._without)
        places = sorted(self._places, key=lambda one: one != self._known)
        failed: Dict[Place, Exception] = {}
        seconds = _OF_SEVERAL_SECONDS if len(places) > 1 else CONNECT_SECONDS
        with contextlib.closing(_connections(places, seconds)) as found:
            for place, one in found:
                checked = self._checked(place, one)
                if isinstance(checked, socket.socket):
                    self._known, self.reached = place, True
                    return checked
                failed[place] = checked
        raise _of_all(places, failed)

    def _checked(
        self, place: Place, found: Union[socket.socket, OSError]
    ) -> Union[socket.socket, Exception]:
        """The connection, over TLS where it is to be, if it leads to the server; else it is closed: why."""
        if isinstance(found, OSError):
            return found
        try:
            if place.encrypted:
                from trainctl.base.tls import pinned  # heavy

                return pinned(found, str(self._fingerprint), f"{place.host} port {place.port}")
            if self._one_of_several and place != self._known:
                self._prove(place, found)
        except (OSError, http.client.HTTPException, Stranger) as error:
            if isinstance(error, OSError) and not isinstance(error, _Other):
                self.reached = True  # busy, or it broke: that passes
            found.close()
            return error
        return found

    def _prove(self, place: Place, connection: socket.socket) -> None:
        """Another host may have the same address in another network, or this host itself: nobody is told the token before they show that they have it."""
        question = Question()
        asking = http.client.HTTPConnection(place.host, place.port)
        asking.sock = connection
        asking.request("GET", question.path)
        with asking.getresponse() as response:
            text = response.read(1000)
        if response.status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise OSError(f"{place.where} has too many connections")
        if not question.answered(text, str(self.token), place.host):
            raise _Other(f"somebody else answers at {place.where}")


class _Other(OSError):
    """Another server than the one that is looked for."""


def _places(urls: Any) -> List[Place]:
    if not isinstance(urls, list) or not urls:
        raise Failure("request", f"{urls!r} are no http://ADDRESS:PORT to fetch weights from")
    return [_place(one) for one in urls]


def _place(url: Any) -> Place:
    parts = urlsplit(url) if isinstance(url, str) else None
    speaks = parts is not None and parts.scheme in ("http", "https")
    if parts is None or not (speaks and parts.hostname and parts.port):
        raise Failure("request", f"{url!r} is no http://ADDRESS:PORT to fetch weights from")
    family(parts.hostname)
    return Place(parts.netloc, parts.hostname, parts.port, parts.scheme == "https")


def _connections(
    places: Sequence[Place], seconds: float
) -> Generator[Tuple[Place, Union[socket.socket, OSError]], None, None]:
    """A connection to each place, or why there is none, as it comes; each is begun a head start after the one before, or when that has failed.

    It ends so many seconds after the last was begun: however long somebody looks at what he was given, the others have their turn.
    """
    left = list(places)
    next_at = until = 0.0
    under_way = selectors.DefaultSelector()
    try:
        while left or under_way.get_map():
            now = time.monotonic()
            if left and (now >= next_at or not under_way.get_map()):
                place, next_at, until = left.pop(0), now + _HEAD_START_SECONDS, now + seconds
                try:
                    under_way.register(_begun(place), selectors.EVENT_WRITE, place)
                except OSError as error:
                    yield place, error
            wait = (next_at if left else until) - now
            ready = under_way.select(wait) if under_way.get_map() else []
            for key, _ in ready:
                under_way.unregister(key.fileobj)
                yield key.data, _connected(cast(socket.socket, key.fileobj), seconds)
            if not (ready or left) and now >= until:
                return
    finally:
        for key in under_way.get_map().values():
            cast(socket.socket, key.fileobj).close()
        under_way.close()


def _begun(place: Place) -> socket.socket:
    one = socket.socket(family(place.host), socket.SOCK_STREAM)
    try:
        one.setblocking(False)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.connect((place.host, place.port))
    except BlockingIOError:  # it is under way
        pass
    except OSError:
        one.close()
        raise
    return one


def _connected(one: socket.socket, seconds: float) -> Union[socket.socket, OSError]:
    error = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        one.close()
        return OSError(error, os.strerror(error))
    one.settimeout(seconds)
    return one


def _of_all(places: Sequence[Place], failed: Mapping[Place, Exception]) -> Exception:
    """What to raise where none of the places will do."""
    first, *others = [failed.get(one, socket.timeout("timed out")) for one in places]
    if not others or all(isinstance(one, Stranger) for one in (first, *others)):
        return first
    text = "; ".join(f"{one.where}: {failed.get(one, 'timed out')}" for one in places)
    silent = any(isinstance(one, socket.timeout) for one in (first, *others))
    return socket.timeout(text) if silent else OSError(text)
