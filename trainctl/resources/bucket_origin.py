"""A mirror in a bucket, as nodes fetch from it: by links that are signed here when they ask for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from trainctl.base.listing import Listing
from trainctl.base.protocol.verb import Answer, Verb
from trainctl.errors import SourceError
from trainctl.remote.agent import NodeAgent
from trainctl.remote.answers import OnEvent
from trainctl.resources.conversation import Conversation
from trainctl.resources.sent_listings import following, with_listing
from trainctl.spi.provider import Node
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.disk_map import DiskMap
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.where import Where
from trainctl.weights.mirror.port import Mirror

_LINK_SECONDS = 3600
"""How long a link holds: the last of a batch must still do when its turn comes. One that doesn't is made anew."""


def bucket_origins(mirror: Mirror, register: Callable[[str], str]) -> BucketOrigins:
    """How such a mirror is opened to nodes."""
    if not isinstance(mirror, BucketMirror):
        raise TypeError(mirror)
    return BucketOrigins(mirror, register)


class BucketOrigins:
    """See Origins. Every node reaches the bucket by itself, and none is nearer than another."""

    far = "mirror-to-node"

    def __init__(self, mirror: BucketMirror, register: Callable[[str], str]) -> None:
        self._mirror = mirror
        self.register = register

    def is_near(self, provider: str, node: Node) -> bool:
        """See Origins."""
        return False

    @contextmanager
    def of(self, provider: str, node: Node, agent: NodeAgent) -> Iterator[Signing]:
        """See Origins."""
        yield Signing(agent, self._mirror)


@dataclass(frozen=True, slots=True)
class Signing:
    """See Opened. The node is answered for as long as a call lasts, and of a delivery for content of its listing alone."""

    agent: NodeAgent
    mirror: BucketMirror

    def call(
        self,
        verb: Verb[Any, Answer],
        request: Mapping[str, Any],
        on_event: OnEvent,
        listing: Listing | None = None,
    ) -> Answer:
        """See Opened."""
        named = _named(listing) if listing else None
        where = Where(self.mirror.shelf, named)

        def answer(event: Mapping[str, Any]) -> dict[str, Any]:
            return self._links(event, named, where)

        with Conversation(self.agent, answer, on_event) as conversation:
            asked = with_listing({**request, "origin": {"type": "bucket"}}, listing)
            return conversation.call(verb, asked, following(listing))

    def _links(
        self, event: Mapping[str, Any], named: DiskMap | None, where: Where
    ) -> dict[str, Any]:
        """Links, and for each content which of them it is behind, and from which byte on if it is in a pack."""
        contents, listing = event.get("contents"), event.get("listing")
        if (
            event.get("want") != "links"
            or not contents
            or not all(map(_is_digest, [listing, *contents]))
        ):
            raise SourceError("a node asked for what is no content")
        if named is not None and len(named.find(contents)) < len(set(contents)):
            raise SourceError("a node asked for content that it has no need of")
        places = where.of(str(listing), contents, lost=bool(event.get("lost")))
        objects = [
            place.pack if place else sha256 for sha256, place in zip(contents, places, strict=True)
        ]
        number = {sha256: at for at, sha256 in enumerate(dict.fromkeys(objects))}
        links = self.mirror.shelf.objects.sign([keys.blob(one) for one in number], _LINK_SECONDS)
        return {
            "links": list(links),
            "places": [
                (number[one], place.offset if place else None)
                for one, place in zip(objects, places, strict=True)
            ],
        }


def _named(listing: Listing) -> DiskMap:
    """The objects that a listing's files are made of."""
    named = DiskMap()
    named.update((one, "") for file in listing.files for one in file.chunks or (file.sha256,))
    return named


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and set(text) <= set("0123456789abcdef")
