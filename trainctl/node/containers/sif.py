"""Apptainer's images: one file each, under the sha256 of its content, as apptainer tells nobody a registry's digest."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Optional, Sequence

from trainctl.base.files import make_directory, read_json, write_json
from trainctl.node.containers.engines import APPTAINER, Answer, call
from trainctl.node.containers.image_store import ImageStore, Login
from trainctl.node.system.layout import Layout

_READ_BYTES = 2**20
Run = Callable[[Sequence[str], Mapping[str, str]], Answer]


class Sif(NamedTuple):
    """An image file, its digest, ``sha256:…``, and the WORKDIR of the image that it was made of; empty if that has none."""

    path: Path
    digest: str
    workdir: str


def find(layout: Layout, reference: str) -> Optional[Sif]:
    """What the name meant when it was last pulled; None if it never was."""
    known = read_json(_record(layout, reference)) or {}
    digest = str(known.get("digest") or "")
    path = ImageStore(layout).sif / f"{digest.rpartition(':')[2]}.sif"
    return Sif(path, digest, str(known.get("workdir") or "")) if path.is_file() else None


def pull(layout: Layout, reference: str, login: Optional[Login], run: Run) -> Answer:
    """Convert the image into a file; apptainer's cache, which goes with the last image, saves what was downloaded before."""
    store = ImageStore(layout)
    with store.pulling() as folder:
        partial = folder / "image.sif"
        variables = _variables(make_directory(store.cache), folder, login)
        answer = run((APPTAINER, "pull", str(partial), f"docker://{reference}"), variables)
        if answer.code == 0:
            digest = _sha256(partial)
            known = {"digest": f"sha256:{digest}", "workdir": _workdir(partial)}
            partial.replace(make_directory(store.sif) / f"{digest}.sif")
            write_json(_record(layout, reference), known)
    return answer


def _variables(cache: Path, temporary: Path, login: Optional[Login]) -> Dict[str, str]:
    """Its cache and what it unpacks are on the node's own disk: a home or ``/tmp`` is often too small for an image."""
    found = {"CACHEDIR": str(cache), "TMPDIR": str(temporary)}
    if login is not None:
        found.update(DOCKER_USERNAME=login.username, DOCKER_PASSWORD=login.password)
    return {f"APPTAINER_{name}": value for name, value in found.items()}


def _workdir(path: Path) -> str:
    """From the image's OCI configuration, which is one of the file's JSON objects; empty where there is none."""
    return next((str(one["WorkingDir"]) for one in _objects(path) if one.get("WorkingDir")), "")


def _objects(path: Path) -> Iterator[Dict[str, Any]]:
    for line in call((APPTAINER, "sif", "list", str(path))).out.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if fields[0].isdigit() and fields[-1].startswith("JSON"):
            try:
                found = json.loads(call((APPTAINER, "sif", "dump", fields[0], str(path))).out)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found


def _record(layout: Layout, reference: str) -> Path:
    return ImageStore(layout).sif / f"{hashlib.sha256(reference.encode()).hexdigest()}.json"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for data in iter(lambda: stream.read(_READ_BYTES), b""):
            digest.update(data)
        os.fsync(stream.fileno())
    return digest.hexdigest()
