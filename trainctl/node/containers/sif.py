"""Apptainer's images: one file each, under the sha256 of its content, as apptainer tells nobody a registry's digest."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Callable, Mapping, NamedTuple, Optional, Sequence

from trainctl.node.containers.engines import APPTAINER, Answer
from trainctl.node.containers.image_store import ImageStore
from trainctl.node.containers.logins import Login
from trainctl.node.system.files import make_directory, read_json, unique, write_json
from trainctl.node.system.layout import Layout

_READ_BYTES = 2**20
Run = Callable[[Sequence[str], Mapping[str, str]], Answer]


class Sif(NamedTuple):
    """An image file and its digest, ``sha256:…``."""

    path: Path
    digest: str


def find(layout: Layout, reference: str) -> Optional[Sif]:
    """What the name meant when it was last pulled; None if it never was."""
    digest = (read_json(_record(layout, reference)) or {}).get("digest")
    path = ImageStore(layout).sif / f"{str(digest).rpartition(':')[2]}.sif"
    return Sif(path, str(digest)) if digest and path.is_file() else None


def pull(layout: Layout, reference: str, login: Optional[Login], run: Run) -> Answer:
    """Convert the image into a file; apptainer's own cache saves what was downloaded before."""
    folder = make_directory(ImageStore(layout).sif)
    partial = folder / f"{unique('partial')}.sif"
    variables = {}
    if login is not None:
        names = ("APPTAINER_DOCKER_USERNAME", "APPTAINER_DOCKER_PASSWORD")
        variables = dict(zip(names, (login.username, login.password)))
    try:
        answer = run((APPTAINER, "pull", str(partial), f"docker://{reference}"), variables)
        if answer.code == 0:
            digest = _sha256(partial)
            partial.replace(folder / f"{digest}.sif")
            write_json(_record(layout, reference), {"digest": f"sha256:{digest}"})
    finally:
        if partial.exists():
            partial.unlink()
    return answer


def _record(layout: Layout, reference: str) -> Path:
    return ImageStore(layout).sif / f"{hashlib.sha256(reference.encode()).hexdigest()}.json"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for data in iter(lambda: stream.read(_READ_BYTES), b""):
            digest.update(data)
        os.fsync(stream.fileno())
    return digest.hexdigest()
