"""Forgetting a lineage, and collecting what nobody needs. The order is invariant 7 of DESIGN.md."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Set

from trainctl.node import layout as names
from trainctl.node import run_verbs
from trainctl.node.failure import Failure
from trainctl.node.files import names_in, remove_tree
from trainctl.node.image_store import ImageStore
from trainctl.node.layout import Layout
from trainctl.node.listing import parse
from trainctl.node.lock import Lock
from trainctl.node.references import References
from trainctl.node.runs import all_runs
from trainctl.node.trees import Trees

Emit = Callable[[Dict[str, Any]], None]
_YOUNG_SECONDS = 3600.0


def forget(request: Mapping[str, Any], emit: Emit) -> Dict[str, Any]:
    """Drop a lineage's references and ended runs, then whatever nobody else needs.

    ``freed`` in bytes; ``empty`` when nothing of anybody is left under ROOT.
    """
    layout = Layout(request["root"])
    lineage = names.name(request["lineage"], "lineage")
    for run in all_runs(layout):
        if (run.spec or {}).get("lineage") == lineage:
            with contextlib.suppress(Failure):  # a live run stays, and so what it needs
                run_verbs.remove({"root": str(layout.root), "key": run.key}, emit)
    references = References(layout)
    references.drop(lineage)
    ImageStore(layout).drop(lineage)
    references.release_unstarted(lineage, {run.key for run in all_runs(layout)})
    freed = _Collector(layout).collect() if layout.cache.is_dir() else 0
    freed += _unused_code(layout) + _unused_environments(layout)
    return {"freed": freed, "empty": _empty(layout)}


class _Collector:
    """Removes trees that nobody needs, then blobs that no tree links."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._references = References(layout)
        self._trees = Trees(layout)

    def collect(self) -> int:
        """Bytes freed."""
        freed = 0
        for listing in self._doomed():
            freed += self._remove_tree(listing)
        return freed + self._remove_blobs()

    def _needed(self) -> Set[str]:
        leases = set(names_in(self._layout.leases))
        return set(self._references.listings()) | self._references.leased(leases)

    def _doomed(self) -> Set[str]:
        return set(names_in(self._layout.trees)) - self._needed()

    def _remove_tree(self, listing: str) -> int:
        lock = Lock(self._layout.locks, f"listing-{listing}")
        if not lock.try_acquire():
            return 0  # somebody is delivering it
        try:
            seal = self._layout.seal(listing)
            aside = seal.with_suffix(".doomed")
            with contextlib.suppress(FileNotFoundError):
                seal.replace(aside)
            if listing in self._needed():
                with contextlib.suppress(FileNotFoundError):
                    aside.replace(seal)
                return 0
            freed = self._trees.remove(listing)
            with contextlib.suppress(FileNotFoundError):
                aside.unlink()
            return freed
        finally:
            lock.release()

    def _remove_blobs(self) -> int:
        """Blobs and parts without a link, but for those of listings that are being delivered."""
        wanted: Set[str] = set()
        for listing, document in self._references.listings().items():
            if document is not None and not self._trees.sealed(listing):
                wanted.update(parse(document).contents)
        freed = 0
        for path in [*self._layout.blobs.glob("*/*"), *self._layout.partial.glob("*.part")]:
            freed += _remove_unlinked(path, wanted)
        if not self._references.lineages():
            for path in [self._layout.partial / name for name in names_in(self._layout.partial)]:
                freed += remove_tree(path) if path.is_dir() else _remove_unlinked(path, set())
            for path in self._layout.seals.glob("*.doomed"):
                path.unlink()
        return freed


def _remove_unlinked(path: Path, wanted: Set[str]) -> int:
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        if found.st_nlink == 1 and path.name.split(".")[0] not in wanted:
            path.unlink()
            return found.st_size
    return 0


def _unused_code(layout: Layout) -> int:
    used = {layout.archive((run.spec or {}).get("code")).name for run in all_runs(layout)}
    alone = not References(layout).lineages()
    freed = 0
    for name in names_in(layout.code):
        with contextlib.suppress(FileNotFoundError):
            found = (layout.code / name).stat()
            if name not in used and (alone or time.time() - found.st_mtime > _YOUNG_SECONDS):
                (layout.code / name).unlink()
                freed += found.st_size
    return freed


def _unused_environments(layout: Layout) -> int:
    """As with code: what a run here names stays, and what is young where others are."""
    used = {str(((run.spec or {}).get("host") or {}).get("venv")) for run in all_runs(layout)}
    alone = not References(layout).lineages()
    freed = 0
    for seal in layout.environments.glob("*.json"):
        path = seal.with_suffix("")
        with contextlib.suppress(FileNotFoundError):
            young = time.time() - seal.stat().st_mtime <= _YOUNG_SECONDS
            if str(path) not in used and (alone or not young):
                seal.unlink()
                freed += remove_tree(path)
    return freed


def _empty(layout: Layout) -> bool:
    """Whether nobody refers to anything here, no run is here and no training cache holds a file."""
    caches = layout.root / "caches"
    held = any(path.is_file() for path in caches.rglob("*")) if caches.is_dir() else False
    return not (References(layout).lineages() or all_runs(layout) or held)
