"""Records that say other chunks of a large content than it has, though it is right."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

from trainctl.weights.mirror.hashed import Chunked
from trainctl.weights.mirror.layout import Layout
from trainctl.weights.mirror.rebuild import relearn


def denied_records(layout: Layout, chunked: Chunked, *, repair: bool) -> Iterator[Path]:
    """Where they are. They are written anew, by the content, which is read once more for that."""
    for path in sorted(layout.fingerprints()):
        said = layout.recorded(path.stem)
        if said is None or not said.chunks or not chunked.denies(said.sha256, said.chunks):
            continue
        if repair:
            layout.prepare()
            content = relearn(layout, said.sha256, said.size)
            if content is not None:
                layout.learn(path.stem, content)
        yield path
