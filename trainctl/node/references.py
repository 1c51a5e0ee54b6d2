"""Who needs what in the node's cache: references of lineages, leases of runs. One file each, so that nobody shares one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Dict, List, Set

from trainctl.node.files import make_directory, names_in, read_json, remove_tree, write_json
from trainctl.node.layout import Layout
from trainctl.node.listing import Listing


class References:
    """The references and leases under one ROOT."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def refer(self, lineage: str, listing: Listing, owner: str) -> None:
        """Say that a lineage needs a listing, before anything of it is looked for. Its mtime is the last use."""
        directory = make_directory(self._layout.references / lineage)
        path = directory / f"{listing.id}.json"
        try:
            os.utime(path)
        except FileNotFoundError:
            write_json(path, {"owner": owner, "document": listing.document})

    def refer_cache(self, lineage: str, name: str, directory: str) -> None:
        """Say that a lineage needs a training cache."""
        folder = make_directory(self._layout.references / lineage)
        write_json(folder / f"cache-{name}.json", {"directory": directory})

    def drop_cache(self, lineage: str, name: str) -> None:
        """Take that back."""
        with contextlib.suppress(FileNotFoundError):
            (self._layout.references / lineage / f"cache-{name}.json").unlink()

    def drop(self, lineage: str) -> None:
        """Drop all references of a lineage."""
        remove_tree(self._layout.references / lineage)

    def lineages(self) -> List[str]:
        """Every lineage that refers to something here."""
        found = names_in(self._layout.references)
        return [name for name in found if names_in(self._layout.references / name)]

    def listings(self) -> Dict[str, Any]:
        """The documents of all listings that some lineage refers to, by id."""
        found: Dict[str, Any] = {}
        for lineage in self.lineages():
            for name in names_in(self._layout.references / lineage):
                if not name.startswith((".", "cache-")):
                    value = read_json(self._layout.references / lineage / name) or {}
                    found[Path(name).stem] = value.get("document")
        return found

    def cache_users(self, name: str) -> List[str]:
        """The lineages that refer to a training cache."""
        return [
            lineage
            for lineage in self.lineages()
            if (self._layout.references / lineage / f"cache-{name}.json").exists()
        ]

    def lease(self, key: str, listing_id: str, lineage: str) -> None:
        """Say that a run needs a listing for as long as its directory or it lives."""
        (make_directory(self._layout.leases / key) / listing_id).write_text(lineage)

    def release_unstarted(self, lineage: str, runs: Set[str]) -> None:
        """Drop the leases that a lineage took for runs which never came to be here."""
        for key in set(names_in(self._layout.leases)) - runs:
            for path in (self._layout.leases / key).iterdir():
                if path.read_text() in ("", lineage):
                    path.unlink()

    def release(self, key: str) -> None:
        """Drop the leases of a run."""
        remove_tree(self._layout.leases / key)

    def leased(self, live: Set[str]) -> Set[str]:
        """The listings that the given runs lease."""
        return {listing for key in live for listing in names_in(self._layout.leases / key)}
