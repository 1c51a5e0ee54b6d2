"""The three small programs that are given to a node's Python on its command line.

They run under Python 3.8 with ``-I -S`` and hold nothing but code: paths and digests are arguments.
"""

from __future__ import annotations

MISSING = 97
"""The exit code of ``RUN`` when the node program is not there, or is not the one that was asked for."""

_LOAD = """\
descriptor = os.memfd_create("trainctl")
with os.fdopen(descriptor, "wb", closefd=False) as stream:
    stream.write(data)
del data
sys.path.insert(0, "/proc/self/fd/%d" % descriptor)
from trainctl.program import main
sys.exit(main())
"""
"""From memory, so that what is loaded, now or later, is what was looked at."""

RUN = (
    """\
import hashlib, os, sys
path, digest = sys.argv[1:3]
def read(path):
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""
tag = sys.implementation.cache_tag
faster = "%s-%s.pyz" % (path[:-4], tag)
data = read(faster)
if data[:64] != hashlib.sha256((digest + tag).encode() + data[64:]).hexdigest().encode():
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
"""Arguments: PATH SHA256 VERB. Hashes the program on every call, then runs it: its bytecode, where that is there and right. Touches it, as one that is used."""

INSTALL = """\
import hashlib, os, sys
path, digest, size = sys.argv[1:4]
folder = os.path.dirname(path)
data, body = sys.stdin.buffer.read(int(size)), sys.stdin.buffer.read()
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
from trainctl.base.bytecode import is_sealed, remove_unused, sealed
if not is_sealed(body, digest):
    body = sealed(data, digest)
put("%s-%s.pyz" % (path[:-4], sys.implementation.cache_tag), body)
descriptor = os.open(folder, os.O_RDONLY)
os.fsync(descriptor)
os.close(descriptor)
from pathlib import Path
remove_unused(Path(folder), digest)
"""
"""Arguments: PATH SHA256 SIZE. The program's bytes come on standard input; it gets its name when it is whole. Its bytecode for this
Python goes beside it: what follows the program, if it is that, else it is compiled now. Programs that were not called for a day are removed."""

VISIT = (
    """\
import hashlib, os, sys
size, digest = int(sys.argv[1]), sys.argv[2]
data = bytearray()
while len(data) < size:
    piece = os.read(0, size - len(data))
    if not piece:
        break
    data += piece
if hashlib.sha256(data).hexdigest() != digest:
    sys.exit("the node program arrived incomplete")
"""
    + _LOAD
)
"""Arguments: SIZE SHA256 VERB. The program's bytes come on standard input before the request, and are only kept in memory."""
