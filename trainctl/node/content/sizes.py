"""JSON files that end in a list of contents, ``{…, NAME: {sha256: size}}``: written and read content by content, as there may be a million."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, Tuple

from trainctl.node.content.listing import File

_SIZE = re.compile(r'"([0-9a-f]{64})": (\d+)[,}]')
_READ = 2**16


def text_of(about: Mapping[str, Any], name: str, contents: Iterable[File]) -> Iterator[str]:
    """Such a file, in pieces."""
    yield json.dumps({**about, name: {}})[: -len("}}")]
    for number, file in enumerate(contents):
        yield f'{", " if number else ""}"{file.sha256}": {file.size}'
    yield "}}"


def sizes_in(path: Path) -> Iterator[Tuple[str, int]]:
    """The contents that a file names, with their sizes; none of one that is gone."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), path.open(
        encoding="ascii", errors="replace"
    ) as stream:
        rest = ""
        while text := stream.read(_READ):
            text, end = rest + text, 0
            for found in _SIZE.finditer(text):
                yield found[1], int(found[2])
                end = found.end()
            rest = text[end:]
