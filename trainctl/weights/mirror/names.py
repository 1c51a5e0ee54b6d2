"""Which names a mirror itself gives in its directory: what lies there under any other is not its own, and stays as it is."""

from __future__ import annotations

import re

CONTENT = r"blobs/sha256/([0-9a-f]{2})/\1[0-9a-f]{62}"
_PACK = r"packs/[0-9a-f]{32}"
LISTING = r"listings/[0-9a-f]{64}\.json"
_HOLDER = r"[\w.]+-\d+-\w+"
_PARTIAL = rf"partial/[0-9a-f]{{64}}\.(?:free|{_HOLDER})\.[0-9a-f]{{8}}"
_SCRATCH = rf"partial/tmp\.{_HOLDER}\.[0-9a-f]{{8,16}}"
_CONDEMNED = rf"condemned/(?:left|{_HOLDER})\.[0-9a-f]{{8}}"
_RECORDS = r"fingerprints/small/[0-9a-f]{64}"

_DIRECTORY = re.compile(
    rf"blobs|blobs/sha256|blobs/sha256/[0-9a-f]{{2}}|packs|{_PACK}|listings|references|references/[^/]+"
    rf"|partial|{_PARTIAL}|{_SCRATCH}|condemned|{_CONDEMNED}|{_CONDEMNED}/packs%2F[0-9a-f]{{32}}"
    rf"|fingerprints|fingerprints/[0-9a-f]{{2}}|fingerprints/small|{_RECORDS}"
)
_FILE = re.compile(
    rf"{CONTENT}|{_PACK}/(?:data|index)|{LISTING}|references/[^/]+/[^/.][^/]*\.json"
    rf"|{_PARTIAL}/(?:data|journal|index)|{_SCRATCH}(?:/(?:data|index))?|partial/(?:[0-9a-f]{{64}}|collection)\.lease"
    rf"|{_CONDEMNED}/(?:blobs%2Fsha256%2F([0-9a-f]{{2}})%2F\2[0-9a-f]{{62}}|listings%2F[0-9a-f]{{64}}\.json|packs%2F[0-9a-f]{{32}}/(?:data|index))"
    rf"|fingerprints/([0-9a-f]{{2}})/\3[0-9a-f]{{62}}\.json|{_RECORDS}/[0-9a-f]{{16}}"
)


def is_own(name: str, *, directory: bool) -> bool:
    """Whether a mirror could have made a directory, or a file, of this name below its root."""
    return (_DIRECTORY if directory else _FILE).fullmatch(name) is not None
