"""Which images were brought to this node for whom, so that the last to need one takes it away again.

ROOT/images/marks/<lineage>/<engine>-<hex>    an empty file for each image
ROOT/images/sif/<sha256>.sif                  apptainer's images; podman and docker keep their own
ROOT/images/sif/<hash of a name>.json         {digest, workdir}: what the name meant when it was last pulled
ROOT/images/cache/                            what apptainer downloaded and converted, so that a tag that is asked again isn't
ROOT/images/pulling-<pid>-<random>/           what one of its pulls is working on
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import ContextManager, Set

from trainctl.base.files import make_directory, names_in, remove_tree
from trainctl.node.containers.engines import APPTAINER, call
from trainctl.node.containers.passing import in_use, passing
from trainctl.node.system.layout import Layout

_PULLING = "pulling"


class ImageStore:
    """The images of one ROOT."""

    def __init__(self, layout: Layout) -> None:
        self._top = layout.root / "images"
        self._marks = self._top / "marks"
        self.sif = self._top / "sif"
        self.cache = self._top / "cache"

    def pulling(self) -> ContextManager[Path]:
        """A directory for one of apptainer's pulls."""
        return passing(self._top, _PULLING)

    def mark(self, lineage: str, engine: str, digest: str, *, brought: bool) -> None:
        """Say that a lineage uses an image; one that was here before any of ours is none of our business."""
        name = f"{engine}-{digest.rpartition(':')[2]}"
        if brought or name in self._marked():
            (make_directory(self._marks / lineage) / name).touch(0o600)

    def drop(self, lineage: str) -> None:
        """Take that back; images that nobody else needs are removed, as far as the engine lets go of them."""
        mine = set(names_in(self._marks / lineage))
        remove_tree(self._marks / lineage)
        for name in sorted(mine - self._marked()):
            engine, _, digest = name.partition("-")
            if engine == APPTAINER:
                with contextlib.suppress(FileNotFoundError):
                    (self.sif / f"{digest}.sif").unlink()
            else:
                call((engine, "image", "rm", f"sha256:{digest}"))
        if not self._marked() and not in_use(self._top, _PULLING):
            remove_tree(self._top)

    def _marked(self) -> Set[str]:
        lineages = names_in(self._marks)
        return {name for lineage in lineages for name in names_in(Path(self._marks, lineage))}
