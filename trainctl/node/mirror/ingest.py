"""The verb that copies a source into a mirror; its request and answer are in ``trainctl.base.protocol.mirrors``."""

from __future__ import annotations

from typing import BinaryIO

from trainctl.base.protocol.conversation import Asking
from trainctl.base.protocol.mirrors import Ingested, IngestRequest
from trainctl.base.protocol.wire import received
from trainctl.base.retry import Retry
from trainctl.base.syscalls import share_arenas
from trainctl.node.mirror.links import Links
from trainctl.node.mirror.objects import Emit, objects_of
from trainctl.node.mirror.progress import throttled
from trainctl.node.mirror.upstream import LinkedUpstream
from trainctl.store import messages
from trainctl.store.references import Reference
from trainctl.store.store import Store


def mirror_ingest(request: IngestRequest, emit: Emit, caller: BinaryIO) -> Ingested:
    """Copy a source in, by links that the caller makes. It ends when the caller does; what arrived is kept."""
    resolved = messages.source_from_json(request["source"], next(received(caller)))
    share_arenas()  # threads come and go with the parts of a source, and each would keep memory of its own
    asking = Asking(caller, emit)
    store = Store(objects_of(request), Retry(tell=lambda text: asking.tell({"say": text})))
    listing = store.ingest(
        resolved,
        LinkedUpstream(resolved, Links(asking, resolved.files)),
        Reference(**request["reference"]),
        progress=throttled(asking.tell),
        cancelled=asking.gone,
        waiting=lambda text: asking.tell({"waiting": text}),
    )
    return {"listing": listing.id}
