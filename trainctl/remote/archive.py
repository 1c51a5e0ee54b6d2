"""The node program as one file: the same bytes from the same source, wherever and whenever they are made."""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from dataclasses import dataclass
from importlib.resources import files

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = (
    "import sys\n\nfrom trainctl.node.__main__ import main\n\n"
    'if __name__ == "__main__":\n    sys.exit(main())\n'
)


@dataclass(frozen=True, slots=True)
class Archive:
    """A zipapp and the hex sha256 of its bytes."""

    data: bytes
    sha256: str


@functools.cache
def node_archive() -> Archive:
    """Pack the installed ``trainctl.node`` so that the node imports it under the name it has here."""
    members = {"__main__.py": _MAIN, "trainctl/__init__.py": ""}
    for source in files("trainctl.node").iterdir():
        if source.name.endswith(".py"):
            members[f"trainctl/node/{source.name}"] = source.read_text(encoding="utf-8")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, text in sorted(members.items()):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, text)
    data = stream.getvalue()
    return Archive(data, hashlib.sha256(data).hexdigest())
