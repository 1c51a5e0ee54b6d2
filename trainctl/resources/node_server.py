"""A server on a node, for as long as a block lasts here: it ends with its caller, also with one that is only silent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from trainctl.base.protocol.verb import Verb
from trainctl.base.protocol.weights import SERVE, Sent
from trainctl.errors import NodeError, NodeUnreachable, TrainctlError
from trainctl.model.delivery import Serving
from trainctl.remote.agent import NodeAgent
from trainctl.resources.conversation import Conversation
from trainctl.resources.tokens import new_token

_START_SECONDS = 60.0
Told = Mapping[str, Any]


class NodeServer:
    """Runs the verb ``serve``, or ``serve_mirror``, with a token of its own, which ``register`` has masked everywhere, as it has the key of its certificate, if it needs one."""

    def __init__(
        self,
        agent: NodeAgent,
        request: Mapping[str, Any],
        register: Callable[[str], str],
        following: Iterable[bytes] = (),
        verb: Verb[Any, Sent] = SERVE,
    ) -> None:
        self._verb = verb
        self._agent = agent
        self._register = register
        self._token = register(new_token())
        self._request = {**request, "token": self._token}
        self._following = following
        self._fingerprint: str | None = None
        self._told: Future[Told] = Future()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="serve")
        self._thread.start()

    def told(self) -> Told:
        """Its first event, once it listens. TrainctlError for why it doesn't."""
        try:
            return self._told.result(_START_SECONDS)
        except TimeoutError:
            raise NodeUnreachable(
                f"a server of weights does not begin within {_START_SECONDS:g} s"
            ) from None

    def serving(self) -> Serving:
        """Who reaches it. TrainctlError as of ``told``."""
        told = self.told()
        return Serving(why=told["why"], loopback=told["loopback"])

    def where(self) -> Mapping[str, Any]:
        """How it is reached: ``urls``, ``token`` and ``loopback``, and the ``fingerprint`` of its certificate for those that speak TLS. TrainctlError as of ``told``."""
        told = self.told()
        found = {"urls": told["urls"], "loopback": told["loopback"], "token": self._token}
        if self._fingerprint is not None:
            found["fingerprint"] = self._fingerprint
        return found

    def end(self) -> None:
        """Have it end; ``close`` waits until it has."""
        self._done.set()

    def close(self) -> None:
        """Have it end, and wait."""
        self.end()
        self._thread.join()

    def _serve(self) -> None:
        try:
            with Conversation(self._agent, self._answer, self._on_event, self._done) as one:
                one.call(self._verb, self._request, self._following)
        except TrainctlError as error:
            if not self._told.done():
                self._told.set_exception(error)
        finally:
            if not self._told.done():
                self._told.set_exception(NodeError("a server on a node ended at once"))

    def _answer(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """A certificate: the node has an address that isn't private."""
        from trainctl.resources.certificates import new_certificate  # heavy, and few need one

        made = new_certificate()
        self._register("\n".join(made.key.splitlines()[1:-1]))
        self._fingerprint = made.fingerprint
        return {"certificate": made.certificate, "key": made.key}

    def _on_event(self, event: Mapping[str, Any]) -> None:
        if "urls" in event:
            self._told.set_result(event)
