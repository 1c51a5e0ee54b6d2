"""Programs for nodes as one file each: the same bytes from the same source, wherever and whenever they are made."""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

_EPOCH = (1980, 1, 1, 0, 0, 0)
_PROGRAM = "trainctl/program.py"
"""The module that the bootstraps run: each archive's own says whose ``main`` that is."""
_MAIN = 'import sys\n\nfrom trainctl.program import main\n\nif __name__ == "__main__":\n    sys.exit(main())\n'

_ENTRY = """\
import sys

from {} import load, main as once


def main():
    if sys.argv[-1] != "session":
        return once()
    from trainctl.base.protocol.call_server import serve

    return serve(once, load)
"""


_SOURCES = (
    "trainctl.model:source_uri", "trainctl.spi:sources",
    "trainctl.sources:bodies", "trainctl.sources:client", "trainctl.sources:https",
    "trainctl.sources:statuses", "trainctl.sources:validators",
)  # fmt: skip
"""What a host needs to read a source by links."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A zipapp and the hex sha256 of its bytes."""

    data: bytes
    sha256: str


@functools.cache
def node_archive() -> Archive:
    """The program that runs on nodes."""
    packages = ("trainctl:errors", "trainctl.base", "trainctl.store", "trainctl.node")
    return program_archive("trainctl.node.__main__", packages + _SOURCES)


@functools.cache
def program_archive(main: str, names: tuple[str, ...]) -> Archive:
    """Pack installed modules so that a node imports them under the names they have here, to run ``main`` of the module ``main``.

    That module also has ``load``; see ``trainctl.base.protocol.call_server``, which has to come along.

    A name is that of a package, of which all modules and packages come along, or of one module: ``PACKAGE:MODULE``.
    """
    members = {"__main__.py": _MAIN, "trainctl/__init__.py": ""}
    members[_PROGRAM] = _ENTRY.format(main)
    for name in names:
        package, _, module = name.partition(":")
        folder = package.replace(".", "/")
        for above in _above(folder):
            members.setdefault(f"{above}/__init__.py", "")
        if module:
            only = files(package) / f"{module}.py"
            members[f"{folder}/{module}.py"] = only.read_text(encoding="utf-8")
        else:
            members.update(_modules(files(package), folder))
    return _packed(members)


def _modules(place: Traversable, folder: str) -> Iterator[tuple[str, str]]:
    """The path in the archive and the text of every module below a package."""
    for found in place.iterdir():
        if found.is_dir():
            yield from _modules(found, f"{folder}/{found.name}")
        elif found.name.endswith(".py"):
            yield f"{folder}/{found.name}", found.read_text(encoding="utf-8")


def _above(folder: str) -> list[str]:
    parts = folder.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _packed(members: Mapping[str, str]) -> Archive:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, text in sorted(members.items()):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, text)
    data = stream.getvalue()
    return Archive(data, hashlib.sha256(data).hexdigest())
