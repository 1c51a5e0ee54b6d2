"""Complete checkpoints of a run in a store, one manifest each; see DESIGN.md."""

from __future__ import annotations

import json
import os
import re
import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple, cast

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.errors import NodeError

if TYPE_CHECKING:
    from trainctl.base.checkpoints.stores import CheckpointStore

COMPLETE = ".complete"
VERSIONS = ".versions"
READ_LEASES = ".reading"
_SHA256 = compile_lazily(r"[0-9a-f]{64}")
_LEASE_SECONDS = 24 * 3600.0
FORMAT = 1

CheckpointManifest = Dict[str, Any]


class RunCheckpoints:
    """Checkpoints of one run; ``prefix`` is ``<project>/<job>/<number>-<id>``."""

    def __init__(self, store: CheckpointStore, prefix: str) -> None:
        self.store = store
        self.prefix = validate_prefix(prefix)

    def manifest_key(self, rank: int, name: str) -> str:
        """Return the key of a checkpoint's manifest."""
        return f"{self.prefix}/{COMPLETE}/rank-{rank}/{name}.json"

    def file_key(self, rank: int, name: str, folder: str, path: str, version: int) -> str:
        """Return the key of a file: its path below the rank, or below ``.versions`` from version 2."""
        if version > 1:
            return f"{self.prefix}/{VERSIONS}/rank-{rank}/{name}/{version}/{path}"
        return f"{self.prefix}/rank-{rank}/{folder}{'/' if folder else ''}{path}"

    def manifests(self) -> List[CheckpointManifest]:
        """Return the valid manifests of complete checkpoints, the oldest first."""
        from trainctl.base.checkpoints.layout import age_key, number_series

        manifests = []
        for stored in self.store.list(f"{self.prefix}/{COMPLETE}/"):
            manifest = parse_manifest(self.store.get(stored.key), self.prefix)
            if manifest is not None and stored.key == self.manifest_key(
                manifest["rank"], manifest["name"]
            ):
                manifests.append(manifest)
        number_series(manifests)
        return sorted(manifests, key=age_key)

    def manifest(self, rank: int, name: str) -> Optional[CheckpointManifest]:
        """Return a checkpoint's manifest; None if it isn't complete."""
        return parse_manifest(self.store.get(self.manifest_key(rank, name)), self.prefix)

    def put(self, manifest: Mapping[str, Any]) -> None:
        """Mark a checkpoint as complete, after all of its files were stored."""
        key = self.manifest_key(manifest["rank"], manifest["name"])
        self.store.put(key, (json.dumps(manifest, sort_keys=True) + "\n").encode())

    def remove_all(self) -> None:
        """Remove everything of the run, manifests first."""
        for prefix in (f"{self.prefix}/{COMPLETE}/", f"{self.prefix}/"):
            for stored in list(self.store.list(prefix)):
                self.store.delete(stored.key)
        self.store.abandon(f"{self.prefix}/")

    def lease(self, rank: int, name: str) -> str:
        """Protect a checkpoint from retention; return the key to delete afterwards."""
        key = f"{self.prefix}/{READ_LEASES}/rank-{rank}/{name}/{os.urandom(8).hex()}.json"
        until = time.time() + _LEASE_SECONDS
        self.store.put(key, json.dumps({"until": until}).encode())
        return key

    def leased(self) -> Set[Tuple[int, str]]:
        """Return rank and name of checkpoints being read; remove leases older than a day."""
        leased = set()
        for stored in self.store.list(f"{self.prefix}/{READ_LEASES}/"):
            match = re.fullmatch(
                r"rank-(\d+)/(.*)/[^/]*",
                stored.key[len(f"{self.prefix}/{READ_LEASES}/") :],
                re.DOTALL,
            )
            if match is None or time.time() - stored.modified > _LEASE_SECONDS:
                self.store.delete(stored.key)
            else:
                leased.add((int(match[1]), match[2]))
        return leased


def points_key(prefix: str, rank: int) -> str:
    """Return the key of the points that a rank of a run has reported."""
    return f"{prefix}/points-{rank}.json"


def list_runs(store: CheckpointStore, project: str) -> Iterator[RunCheckpoints]:
    """Yield every run of a project with a complete checkpoint."""
    prefixes = set()
    for stored in store.list(f"{validate_prefix(project)}/"):
        parts = stored.key.split("/")
        if len(parts) > 4 and parts[3] == COMPLETE:
            prefixes.add("/".join(parts[:3]))
    for prefix in sorted(prefixes):
        yield RunCheckpoints(store, prefix)


def parse_manifest(data: Optional[bytes], prefix: str) -> Optional[CheckpointManifest]:
    """Parse an untrusted manifest; None unless paths and keys are safe."""
    from trainctl.base.checkpoints.layout import age_key, folder_of

    try:
        manifest = json.loads(data or b"")
        valid = (
            manifest["format"] == FORMAT
            and isinstance(manifest["rank"], int)
            and is_checkpoint_name(manifest["name"])
            and is_checkpoint_name(folder_of(manifest) or ".")
            and all(_is_file(file, prefix) for file in manifest["files"])
            and all({"name", "kind", "value"} <= {*row} for row in manifest.get("pointers", ()))
            and age_key(manifest) is not None
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return cast(CheckpointManifest, manifest) if valid else None


def is_checkpoint_name(name: Any) -> bool:
    """Return whether this is a checkpoint's path below its rank; ``.`` is that of loose files."""
    if not isinstance(name, str) or "\0" in name:
        return False
    return name == "." or not any(part in ("", ".", "..") for part in name.split("/"))


def validate_prefix(prefix: str) -> str:
    """Return a valid prefix; TrainctlError otherwise."""
    if any(part in ("", ".", "..") or "\0" in part for part in prefix.split("/")):
        raise NodeError(f"{prefix!r} is not a prefix of checkpoints")
    return prefix


def _is_file(file: Mapping[str, Any], prefix: str) -> bool:
    path, key = file["path"], file["key"]
    return (
        not any(part in ("", ".", "..") for part in path.split("/"))
        and "\0" not in path
        and key.startswith(f"{prefix}/")
        and not any(part in ("", ".", "..") for part in key.split("/"))
        and isinstance(file["size"], int)
        and file["size"] >= 0
        and _SHA256.fullmatch(file["sha256"]) is not None
    )
