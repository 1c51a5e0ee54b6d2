"""What is kept of one run in a store: manifests, one for each complete checkpoint. See DESIGN.md, "Checkpoints"."""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple, cast

from trainctl.base.checkpoints.ranking import age_key
from trainctl.base.checkpoints.stores import CheckpointStore
from trainctl.base.failure import Failure

COMPLETE = ".complete"
VERSIONS = ".versions"
READ_LEASES = ".reading"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LEASE_SECONDS = 24 * 3600.0
FORMAT = 1

CheckpointManifest = Dict[str, Any]


class RunCheckpoints:
    """One run's part of a store; ``prefix`` is ``<project>/<job>/<number>-<id>``."""

    def __init__(self, store: CheckpointStore, prefix: str) -> None:
        self.store = store
        self.prefix = validate_prefix(prefix)

    def manifest_key(self, rank: int, name: str) -> str:
        """Where the manifest of a checkpoint is."""
        return f"{self.prefix}/{COMPLETE}/rank-{rank}/{name}.json"

    def file_key(self, rank: int, name: str, path: str, version: int) -> str:
        """Where a file of a checkpoint is: under its own path if it never changed since it was first complete."""
        if version > 1:
            return f"{self.prefix}/{VERSIONS}/rank-{rank}/{name}/{version}/{path}"
        folder = "" if name == "." else f"{name}/"
        return f"{self.prefix}/rank-{rank}/{folder}{path}"

    def manifests(self) -> List[CheckpointManifest]:
        """Of every complete checkpoint, the oldest first. One that can't be believed is left out."""
        found = []
        for stored in self.store.list(f"{self.prefix}/{COMPLETE}/"):
            manifest = parse_manifest(self.store.get(stored.key), self.prefix)
            if manifest is not None and stored.key == self.manifest_key(
                manifest["rank"], manifest["name"]
            ):
                found.append(manifest)
        return sorted(found, key=age_key)

    def manifest(self, rank: int, name: str) -> Optional[CheckpointManifest]:
        """Of one checkpoint; None if it isn't complete."""
        return parse_manifest(self.store.get(self.manifest_key(rank, name)), self.prefix)

    def put(self, manifest: Mapping[str, Any]) -> None:
        """Say that a checkpoint is complete: every file it names is in the store."""
        key = self.manifest_key(manifest["rank"], manifest["name"])
        self.store.put(key, (json.dumps(manifest, sort_keys=True) + "\n").encode())

    def remove(self, manifest: Mapping[str, Any]) -> None:
        """Remove a checkpoint: first it is no longer complete, then it is gone."""
        self.store.delete(self.manifest_key(manifest["rank"], manifest["name"]))
        for file in manifest["files"]:
            self.store.delete(file["key"])

    def remove_all(self) -> None:
        """Remove everything that the store has of the run, manifests first."""
        for manifest in self.manifests():
            self.remove(manifest)
        for stored in list(self.store.list(f"{self.prefix}/")):
            self.store.delete(stored.key)
        self.store.abandon(f"{self.prefix}/")

    def lease(self, rank: int, name: str) -> str:
        """Keep retention from removing a checkpoint while it is read; the key to delete afterwards."""
        key = f"{self.prefix}/{READ_LEASES}/rank-{rank}/{name}/{os.urandom(8).hex()}.json"
        until = time.time() + _LEASE_SECONDS
        self.store.put(key, json.dumps({"until": until}).encode())
        return key

    def leased(self) -> Set[Tuple[int, str]]:
        """Checkpoints that are being read. Stale leases are removed after a day."""
        found = set()
        for stored in self.store.list(f"{self.prefix}/{READ_LEASES}/"):
            match = re.fullmatch(
                r"rank-(\d+)/(.*)/[^/]*",
                stored.key[len(f"{self.prefix}/{READ_LEASES}/") :],
                re.DOTALL,
            )
            if match is None or time.time() - stored.modified > _LEASE_SECONDS:
                self.store.delete(stored.key)
            else:
                found.add((int(match[1]), match[2]))
        return found


def list_runs(store: CheckpointStore, project: str) -> Iterator[RunCheckpoints]:
    """Every run of a project of which the store holds a complete checkpoint."""
    prefixes = set()
    for stored in store.list(f"{validate_prefix(project)}/"):
        parts = stored.key.split("/")
        if len(parts) > 4 and parts[3] == COMPLETE:
            prefixes.add("/".join(parts[:3]))
    for prefix in sorted(prefixes):
        yield RunCheckpoints(store, prefix)


def parse_manifest(data: Optional[bytes], prefix: str) -> Optional[CheckpointManifest]:
    """A manifest that can be believed: its files stay below their directory, and its keys below the run's."""
    try:
        found = json.loads(data or b"")
        good = (
            found["format"] == FORMAT
            and isinstance(found["rank"], int)
            and is_checkpoint_name(found["name"])
            and all(_is_file(file, prefix) for file in found["files"])
            and age_key(found) is not None
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return cast(CheckpointManifest, found) if good else None


def is_checkpoint_name(name: Any) -> bool:
    """Whether a checkpoint can be called so."""
    return isinstance(name, str) and name not in ("", "..") and "/" not in name and "\0" not in name


def validate_prefix(prefix: str) -> str:
    """The prefix, if it is one; else Failure."""
    if any(part in ("", ".", "..") or "\0" in part for part in prefix.split("/")):
        raise Failure("request", f"{prefix!r} is not a prefix of checkpoints")
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
