"""Pack programs for nodes into reproducible single-file archives."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.machinery import SourceFileLoader
from itertools import accumulate
from pathlib import Path
from types import CodeType

import trainctl
from trainctl.base.system.bytecode import is_valid_bytecode, pack_bytecode

_EPOCH = (1980, 1, 1, 0, 0, 0)
_PROGRAM = "trainctl/program.py"
"""Module that the bootstrap scripts run; imports ``main`` of the archive's main module."""
_DIGITS = 64
_MAIN = 'import sys\n\nfrom trainctl.program import main\n\nif __name__ == "__main__":\n    sys.exit(main())\n'

_ENTRY = """\
import sys

from {} import load, main as once


def main():
    if sys.argv[-1] != "session":
        return once()
    from trainctl.base.system.call_server import serve

    return serve(once, load)
"""


_SOURCES = (
    "trainctl.model:source_uri", "trainctl.plugin_api:sources",
    "trainctl.sources:client", "trainctl.sources:https",
)  # fmt: skip
"""Modules that a host needs to read sources by URL."""


_SOURCE_ROOT = Path(trainctl.__file__).parents[1]


class ProgramArchive:
    """A zipapp, packed when its data is needed.

    ``members``: path in the archive, and its text or the module that has it. ``cache``: a directory that keeps the digest
    for as long as no module changes, as packing takes longer than a call.
    """

    def __init__(self, members: Mapping[str, str | Path], cache: Path | None = None) -> None:
        self._members = members
        self._cache = cache

    @cached_property
    def data(self) -> bytes:
        """The archive's bytes; the same for the same modules."""
        import zipfile

        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            for name, member in sorted(self._members.items()):
                info = zipfile.ZipInfo(name, _EPOCH)
                info.create_system = 3
                info.external_attr = 0o644 << 16
                archive.writestr(
                    info, member if isinstance(member, str) else member.read_text("utf-8")
                )
        return stream.getvalue()

    @cached_property
    def sha256(self) -> str:
        """Its digest in hex."""
        from trainctl.base.filesystem.files import make_directory, write_atomic

        kept = self._cache / f"program-{self._version()}" if self._cache else None
        with contextlib.suppress(OSError):
            if kept is not None and len(digest := kept.read_text()) == _DIGITS:
                return digest
        digest = hashlib.sha256(self.data).hexdigest()
        if kept is not None:
            with contextlib.suppress(OSError):
                make_directory(kept.parent)
                for old in kept.parent.glob("program-*"):
                    old.unlink()
                write_atomic(kept, digest.encode())
        return digest

    def _version(self) -> str:
        """Return what differs when a module was written: a change of content changes its time of change."""
        version = hashlib.sha256()
        for name, member in sorted(self._members.items()):
            status = member if isinstance(member, str) else member.stat()
            known = (
                status
                if isinstance(status, str)
                else (status.st_ino, status.st_size, status.st_ctime_ns)
            )
            version.update(repr((name, known)).encode())
        return version.hexdigest()[:16]


@functools.cache
def node_archive(cache: Path | None = None) -> ProgramArchive:
    """The node program; ``cache`` as for ProgramArchive."""
    packages = ("trainctl:errors", "trainctl.base", "trainctl.store", "trainctl.node")
    return program_archive("trainctl.node.__main__", packages + _SOURCES, cache)


@functools.cache
def program_archive(main: str, names: tuple[str, ...], cache: Path | None = None) -> ProgramArchive:
    """Return an archive of modules of trainctl with their import names, which runs ``main.main``.

    The module ``main`` also defines ``load``; see ``trainctl.base.system.call_server``, which must be included.
    Names are packages, packed with all modules below, or single modules: ``PACKAGE:MODULE``.
    """
    members: dict[str, str | Path] = {"__main__.py": _MAIN, "trainctl/__init__.py": ""}
    members[_PROGRAM] = _ENTRY.format(main)
    for name in names:
        package, _, module = name.partition(":")
        folder = package.replace(".", "/")
        for parent in accumulate(folder.split("/"), "{}/{}".format):
            members.setdefault(f"{parent}/__init__.py", "")
        below = [f"{folder}/{module}.py"] if module else _modules(folder)
        members.update({path: _SOURCE_ROOT / path for path in below})
    return ProgramArchive(members, cache)


def _modules(folder: str) -> Iterator[str]:
    """Paths of every module below a package, from the root of the source."""
    for entry in os.scandir(f"{_SOURCE_ROOT}/{folder}"):
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _modules(f"{folder}/{entry.name}")
        elif entry.name.endswith(".py"):
            yield f"{folder}/{entry.name}"


def load_bytecode(archive: ProgramArchive, cache: Path) -> bytes:
    """Read the program's bytecode from ``cache``, or compile and store it there."""
    from trainctl.base.filesystem.files import make_directory, write_atomic

    path = cache / f"{sys.implementation.cache_tag}.code"
    with contextlib.suppress(OSError):
        data = path.read_bytes()
        if is_valid_bytecode(data, archive.sha256):
            return data
    data = pack_bytecode(archive.data, archive.sha256, _installed_code)
    with contextlib.suppress(OSError):
        make_directory(path.parent)
        write_atomic(path, data)
    return data


def _installed_code(name: str, source: bytes) -> CodeType | None:
    """Compiled code of an installed module; None if compiled from other source."""
    path = _SOURCE_ROOT / name
    loader = SourceFileLoader(name, str(path))
    try:
        code = loader.get_code(name)
        return code if path.read_bytes() == source else None
    except (OSError, ImportError):
        return None


MISSING = 97
"""Exit code of ``RUN`` if the node program is missing or has another digest."""

_LOAD = """\
gc.set_threshold(10_000, 50, 50)  # importing makes no garbage
class Importer:
    @staticmethod
    def find_spec(name, path=None, target=None):
        stem = name.replace(".", "/")
        for origin in (stem + ".py", stem + "/__init__.py"):
            if origin in members:
                is_package = origin != stem + ".py"
                return type(sys.__spec__)(name, Importer, origin=origin, is_package=is_package)
    @staticmethod
    def create_module(spec):
        return None
    @staticmethod
    def exec_module(module):
        code = members[module.__spec__.origin]
        code = marshal.loads(code) if compiled else compile(code, module.__spec__.origin, "exec")
        exec(code, module.__dict__)
if compiled:
    members = marshal.loads(memoryview(data)[64:])
else:
    import io, zipfile
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
del data
sys.meta_path.insert(0, Importer)
from trainctl.program import main
sys.exit(main())
"""
"""Imports from memory, so that all code loaded now or later has been verified."""

RUN = (
    """\
import gc, hashlib, marshal, os, sys
path, digest = sys.argv[1:3]
def read(path):
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""
tag = sys.implementation.cache_tag
data = read("%s-%s.code" % (path[:-4], tag))
expected = hashlib.sha256((digest + tag).encode())
expected.update(sys.modules["_frozen_importlib_external"].MAGIC_NUMBER)
expected.update(memoryview(data)[64:])
compiled = data[:64] == expected.hexdigest().encode()
if not compiled:
    data = read(path)
    if hashlib.sha256(data).hexdigest() != digest:
        sys.exit(97)
try:
    os.utime(path)
except OSError:
    pass
"""
    + _LOAD
)
"""Arguments: PATH SHA256 METHOD. Verifies the program on every call and runs it, from bytecode if valid; sets its mtime."""

INSTALL = """\
import hashlib, os, sys, zlib
os.umask(0o077)
path, digest, size = sys.argv[1:4]
folder = os.path.dirname(path)
try:
    sent = zlib.decompress(sys.stdin.buffer.read())
except zlib.error:
    sent = b""
data, body = sent[:int(size)], sent[int(size):]
if hashlib.sha256(data).hexdigest() != digest:
    sys.exit("the node program arrived incomplete")
os.makedirs(folder, 0o700, exist_ok=True)
def put(path, data):
    temporary = "%s.%d.%s" % (path, os.getpid(), os.urandom(6).hex())
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if os.path.exists(temporary):
            os.unlink(temporary)
        sys.exit("%s: %s" % (error.strerror, folder))
put(path, data)
sys.path.insert(0, path)
from trainctl.base.system.bytecode import is_valid_bytecode, pack_bytecode, remove_unused
if not is_valid_bytecode(body, digest):
    body = pack_bytecode(data, digest)
put("%s-%s.code" % (path[:-4], sys.implementation.cache_tag), body)
descriptor = os.open(folder, os.O_RDONLY)
os.fsync(descriptor)
os.close(descriptor)
from pathlib import Path
remove_unused(Path(folder), digest)
"""
"""Arguments: PATH SHA256 SIZE. Installs the program and its bytecode, and removes programs unused for a day.

Standard input: program and bytecode, compressed with zlib. Invalid bytecode is replaced by compiling.
"""

VISIT = (
    """\
import gc, hashlib, marshal, os, sys, zlib
size, digest, length, program = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
data = bytearray()
while len(data) < size:
    chunk = os.read(0, size - len(data))
    if not chunk:
        break
    data += chunk
if hashlib.sha256(data).hexdigest() != digest:
    sys.exit("the node program arrived incomplete")
data = zlib.decompress(data)
body = data[length:]
made_for = (program + sys.implementation.cache_tag).encode()
made_for += sys.modules["_frozen_importlib_external"].MAGIC_NUMBER
expected = hashlib.sha256(made_for + body[64:]).hexdigest().encode()
compiled = body[:64] == expected
data = body if compiled else data[:length]
"""
    + _LOAD
)
"""Arguments: SIZE SHA256 LENGTH DIGEST METHOD. Runs a program from memory that precedes the request on standard input.

SIZE bytes with digest SHA256, compressed with zlib: the program (LENGTH bytes, digest DIGEST) and its bytecode,
which is used if it was compiled for this Python.
"""
