"""Files that name very many contents with their sizes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from trainctl.node.content.listing import File
from trainctl.node.content.sizes import sizes_in, text_of


def made(count: int) -> list[File]:
    """So many contents, with sizes of one digit and of many."""
    names = (hashlib.sha256(b"%d" % number).hexdigest() for number in range(count))
    return [File(f"{number}", number**3, name, ()) for number, name in enumerate(names)]


def test_it_is_json_and_read_content_by_content(tmp_path: Path) -> None:
    """Of none, of some, and of so many that they are read in pieces; also as other versions have written it."""
    place = tmp_path / "one.json"
    for count in (0, 1, 3000):
        sizes = {file.sha256: file.size for file in made(count)}
        place.write_text("".join(text_of({"bytes": 7}, "contents", made(count))))

        assert json.loads(place.read_text()) == {"bytes": 7, "contents": sizes}
        assert dict(sizes_in(place)) == sizes
        place.write_text(json.dumps({"contents": sizes}, sort_keys=True) + "\n")
        assert dict(sizes_in(place)) == sizes


def test_what_is_gone_or_damaged_names_what_can_be_read(tmp_path: Path) -> None:
    """No file names nothing, and bytes that are no text are skipped."""
    place = tmp_path / "one.json"
    text = "".join(text_of({}, "contents", made(2)))
    place.write_bytes(b"\xff\xfe" + text.encode() + b"\x80")

    assert list(sizes_in(place)) == [(file.sha256, file.size) for file in made(2)]
    assert list(sizes_in(tmp_path / "gone")) == list(sizes_in(place / "below")) == []
