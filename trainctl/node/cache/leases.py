"""Leases: which listings runs need, and when a run that is gone needs nothing any more. See DESIGN.md, "Leases"."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Dict, List, Mapping, Optional, Set

from trainctl.base.files import modified, names_in, read_json, remove_tree, write_volatile
from trainctl.base.lease import FileLease
from trainctl.base.processes import alive, identity
from trainctl.base.protocol.spec import RunSpec
from trainctl.node.cache.trees import Trees
from trainctl.node.runs.record import CREATED, ENDED, LOST, Run
from trainctl.node.system.layout import Layout

UNSTARTED_SECONDS = 24 * 3600.0
"""How long a delivery waits for its run to start, when nobody is at it: others of a gang may take that long."""


class Leases:
    """The leases in one cache, which runs under several ROOTs may share."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def take(self, key: str, listing_id: str, lineage: str) -> None:
        """Say that a run needs a listing, before the listing's seal is looked at."""
        write_volatile(
            self._layout.leases / key / listing_id,
            {"lineage": lineage, "root": str(self._layout.root), "holder": identity()},
        )

    def release(self, key: str) -> None:
        """Drop the leases of a run."""
        remove_tree(self._layout.leases / key)

    def give_back(self, key: str, listing_id: str) -> None:
        """Drop the lease of a listing that could not be delivered, unless the run is there and may be using it."""
        if key and Run(self._layout, key).spec is None:
            with contextlib.suppress(FileNotFoundError):
                (self._layout.leases / key / listing_id).unlink()

    def release_unstarted(self, lineage: str, runs: Set[str]) -> None:
        """Drop the leases that a lineage took for runs which never came to be under this ROOT."""
        for key in set(names_in(self._layout.leases)) - runs:
            leases = self._of(key).values()
            mine = {"lineage": lineage, "root": str(self._layout.root)}
            if not leases:
                self._sweep(key)
            elif all(lease.get(name) == mine[name] for lease in leases for name in mine):
                self.release(key)

    def live(self) -> Dict[str, List[str]]:
        """Of each listing that is needed now, the runs that need it; what is stale is not there."""
        found: Dict[str, List[str]] = {}
        for key in names_in(self._layout.leases):
            leases = self._of(key)
            if leases and self._is_live(key, leases):
                for listing in leases:
                    found.setdefault(listing, []).append(key)
        return found

    def need(self, listing_id: str) -> bool:
        """Whether some live run needs the listing."""
        keys = names_in(self._layout.leases)
        return any(
            listing_id in leases and self._is_live(key, leases)
            for key, leases in ((key, self._of(key)) for key in keys)
        )

    def describe(self, key: str) -> str:
        """A run for people: its job and number where they are known."""
        spec = self._spec(key)
        if spec is None:
            return "a run that has not begun yet"
        return f"{spec['address']} run {spec['number']} ({spec['id']})"

    def project(self, key: str) -> Optional[str]:
        """Whose run it is, where that is known."""
        spec = self._spec(key)
        return spec["project"] if spec else None

    def _spec(self, key: str) -> Optional[RunSpec]:
        specs = (Run(Layout(root), key).spec for root in self._roots(self._of(key)))
        return next(filter(None, specs), None)

    def _sweep(self, key: str) -> None:
        """Remove a run's directory that holds no lease, with what killed writers left; one who is writing now makes it anew."""
        directory = self._layout.leases / key
        if names_in(directory) and not self._is_young(key):
            remove_tree(directory)
        with contextlib.suppress(OSError):
            directory.rmdir()

    def _of(self, key: str) -> Dict[str, Mapping[str, Any]]:
        """A run's leases by listing; one that is being written, or was cut by a crash, still counts."""
        directory = self._layout.leases / key
        names = (name for name in names_in(directory) if not name.startswith("."))
        found = {name: read_json(directory / name) for name in names}
        return {name: lease if isinstance(lease, dict) else {} for name, lease in found.items()}

    def _is_live(self, key: str, leases: Mapping[str, Mapping[str, Any]]) -> bool:
        for root in self._roots(leases):
            status = Run(Layout(root), key).status()  # of a lost run nothing is left after this
            if status is not None and status["status"] in {*ENDED, LOST}:
                return False
            if status is not None and (status["supervised"] or status["status"] != CREATED):
                return True
        return any(alive(lease.get("holder")) for lease in leases.values()) or self._is_young(key)

    def _roots(self, leases: Mapping[str, Mapping[str, Any]]) -> Set[str]:
        return {str(lease["root"]) for lease in leases.values() if lease.get("root")}

    def _is_young(self, key: str) -> bool:
        names = names_in(self._layout.leases / key)
        newest = max((modified(self._layout.leases / key / name) for name in names), default=0.0)
        return time.time() - newest < UNSTARTED_SECONDS


def hold(run: Run, listing_id: str) -> bool:
    """Have a run need a sealed listing for as long as it lives; False if it is not here.

    The lease comes first, then the look at the seal. Who is just about to evict the listing holds its lock, sees the
    lease, and puts the seal back.
    """
    layout = run.layout
    spec = run.spec
    Leases(layout).take(run.key, listing_id, spec["lineage"] if spec else "")
    trees = Trees(layout)
    if trees.sealed(listing_id):
        return True
    if not layout.locks.is_dir():
        return False
    with FileLease(layout.locks / f"listing-{listing_id}.lock"):
        trees.settle(listing_id)
        return trees.sealed(listing_id)
