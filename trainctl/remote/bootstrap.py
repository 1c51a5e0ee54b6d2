"""The three small programs that are given to a node's Python on its command line.

They run under Python 3.8 with ``-I`` and hold nothing but code: paths and digests are arguments.
"""

from __future__ import annotations

MISSING = 97
"""The exit code of ``RUN`` when the node program is not there, or is not the one that was asked for."""

RUN = """\
import hashlib, sys
path, digest = sys.argv[1:3]
try:
    with open(path, "rb") as stream:
        right = hashlib.sha256(stream.read()).hexdigest() == digest
except OSError:
    right = False
if not right:
    sys.exit(97)
sys.path.insert(0, path)
from trainctl.node.__main__ import main
sys.exit(main())
"""
"""Arguments: PATH SHA256 VERB. Hashes the program on every call, then runs it."""

INSTALL = """\
import hashlib, os, sys
path, digest = sys.argv[1:3]
folder = os.path.dirname(path)
data = sys.stdin.buffer.read()
if hashlib.sha256(data).hexdigest() != digest:
    sys.exit("the node program arrived incomplete")
os.makedirs(folder, 0o700, exist_ok=True)
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
descriptor = os.open(folder, os.O_RDONLY)
os.fsync(descriptor)
os.close(descriptor)
"""
"""Arguments: PATH SHA256. The program's bytes come on standard input; it gets its name when it is whole."""

VISIT = """\
import hashlib, os, sys
size, digest = int(sys.argv[1]), sys.argv[2]
data = sys.stdin.buffer.read(size)
if hashlib.sha256(data).hexdigest() != digest:
    sys.exit("the node program arrived incomplete")
descriptor = os.memfd_create("trainctl-node")
with os.fdopen(descriptor, "wb", closefd=False) as stream:
    stream.write(data)
sys.path.insert(0, "/proc/self/fd/%d" % descriptor)
from trainctl.node.__main__ import main
sys.exit(main())
"""
"""Arguments: SIZE SHA256 VERB. The program's bytes come on standard input before the request, and are only kept in memory."""
