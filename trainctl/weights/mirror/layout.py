"""Names inside a mirror directory, and the small records kept there. DESIGN.md beside the package has the forms."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence, TypeVar
from urllib.parse import quote

from trainctl.base import below
from trainctl.base.exclusive import holder_name
from trainctl.base.files import make_directory as make_private_directory
from trainctl.base.files import make_durable
from trainctl.base.json import canonical, hex_digest
from trainctl.base.listing import (
    CHUNK_BYTES,
    ListedFile,
    Listing,
    ResolvedSource,
    SourceFile,
    check_listing,
    is_digest,
    load_listing,
    read_files,
)
from trainctl.base.sharing import make_directory
from trainctl.errors import StorageError
from trainctl.weights.mirror.checked import checked, reference_in
from trainctl.weights.mirror.disk import write_record
from trainctl.weights.mirror.hashing import file_sha256
from trainctl.weights.mirror.names import is_own

DAMAGED = "mirror-damaged"
"""How it is called that a record is not what was written."""
T = TypeVar("T")


@dataclass(frozen=True)
class Content:
    """What a fingerprint turned out to be; ``chunks`` as in ``ListedFile``."""

    sha256: str
    size: int
    chunks: tuple[str, ...] = ()

    def listed(self, path: str) -> ListedFile:
        """The content under a path."""
        return ListedFile(path, self.size, self.sha256, self.chunks)


@dataclass(frozen=True)
class Reference:
    """Who wants a source to stay: a resource of a state, by the state's lineage and its address; and what of it, by patterns."""

    lineage: str
    address: str
    owner: str
    project: str
    allow_patterns: Sequence[str] | None = None
    ignore_patterns: Sequence[str] | None = None

    def record(
        self, before: Mapping[str, Any], resolved: ResolvedSource, listing: str | None, now: float
    ) -> dict[str, Any]:
        """What is written of it, ``before`` being what was; without a listing it is being mirrored for, by this process."""
        place = (before.get("source"), before.get("endpoint"))
        is_here = place == (resolved.source, resolved.endpoint)
        same = is_here and before.get("pin") == resolved.pin
        replaces = not same and before.get("listing")
        kept = before.get("listing") if replaces else before.get("previous")
        pin = before.get("pin") if replaces else before.get("previous_pin")
        told = {name: before.get(name) for name in ("revision", "files", "bytes")}
        version = told if replaces else before.get("previous_version")
        return {
            "version": 1,
            **{name: one for name, one in asdict(self).items() if one is not None},
            "source": resolved.source,
            **({"endpoint": resolved.endpoint} if resolved.endpoint else {}),
            "revision": resolved.revision,
            "pin": resolved.pin,
            "listing": listing or (before.get("listing") if same else None),
            "previous": kept if listing is None else None,
            "previous_pin": pin if listing is None and is_here else None,
            "previous_version": version if listing is None and is_here else None,
            "files": len(resolved.files),
            "bytes": resolved.size,
            "holder": holder_name() if listing is None else None,
            "last_used": now,
        }


def listing_in(record: Mapping[str, Any], resolved: ResolvedSource) -> str | None:
    """The listing that a reference says this very source is at its pin, if it says so; also of the version that it has until another is whole."""
    if (record.get("source"), record.get("endpoint")) != (resolved.source, resolved.endpoint):
        return None
    for pin, listing in (("pin", "listing"), ("previous_pin", "previous")):
        if record.get(pin) == resolved.pin and record.get(listing):
            return str(record[listing])
    return None


def versions_in(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The reference as it is to each version that it keeps: to the one that comes, and to the one that it has until that is whole, if it says which."""
    yield record
    had = record.get("previous_version")
    if isinstance(had, dict) and record.get("previous") and not record.get("listing"):
        yield {**record, **had, "listing": record["previous"]}


def named_in(record: Mapping[str, Any]) -> tuple[str, str | None, str]:
    """The source that a reference is to, its server and its revision."""
    server = record.get("endpoint")
    return str(record.get("source")), server and str(server), str(record.get("revision"))


def patterns_in(record: Mapping[str, Any]) -> tuple[Sequence[str] | None, Sequence[str] | None]:
    """The patterns of a reference, allowing and ignoring ones, as far as it says them."""
    return record.get("allow_patterns"), record.get("ignore_patterns")


def fingerprint(resolved: ResolvedSource, file: SourceFile) -> str:
    """What upstream tells of a file's identity, as one hex digest."""
    if file.sha256 is not None:
        return content_fingerprint(file.sha256, file.size)
    return hex_digest([resolved.identity, file.path, file.size, file.validator])


def content_fingerprint(sha256: str, size: int) -> str:
    """The fingerprint of a file whose sha256 is known."""
    return hex_digest(["sha256", sha256, size])


class Entry(NamedTuple):
    """Something in a mirror's directory, by its ``name`` below the root; ``size`` of what is no directory, in bytes; whether the mirror made it (``is_own``)."""

    path: Path
    name: str
    is_directory: bool
    is_own: bool
    size: int


@dataclass(frozen=True)
class Layout:
    """Paths below one mirror. ``chunk_bytes`` is the format's, smaller only in tests."""

    root: Path
    chunk_bytes: int = CHUNK_BYTES

    @property
    def partial(self) -> Path:
        """Where files are while they are not whole."""
        return self.root / "partial"

    @property
    def packs(self) -> Path:
        """Where packs of small contents are."""
        return self.root / "packs"

    def blob(self, sha256: str) -> Path:
        """Where the file of the content with this sha256 alone is or will be."""
        return Path(self.blob_name(sha256))

    def blob_name(self, sha256: str) -> str:
        """The same as text, for what is done with thousands."""
        return f"{self.root}/blobs/sha256/{sha256[:2]}/{sha256}"

    def inside(self, place: str) -> Iterator[Entry]:
        """What the mirror itself made in one of its directories, by its name below the root. What others put there is passed over, and links are not followed."""
        return (one for one in self._entries(place) if one.is_own)

    def strays(self, place: str = "") -> Iterator[Entry]:
        """What the mirror did not make, each by itself and without what is in it."""
        for one in sorted(self._entries(place), key=lambda one: one.name):
            if not one.is_own:
                yield one
            elif one.is_directory:
                yield from self.strays(one.name)

    def _entries(self, place: str) -> Iterator[Entry]:
        for one in below.entries(self.root, self.root / place):
            name = f"{place}/{one.name}".lstrip("/")
            is_directory = one.is_dir(follow_symlinks=False)
            own = (is_directory or one.is_file(follow_symlinks=False)) and is_own(
                name, directory=is_directory
            )
            with contextlib.suppress(FileNotFoundError):  # it has gone just now
                size = 0 if is_directory else one.stat(follow_symlinks=False).st_size
                yield Entry(self.root / name, name, is_directory, own, size)

    def blobs(self) -> Iterator[tuple[Path, int]]:
        """Every content that has a file of its own, in the order of their digests, with its size in bytes."""
        for number in range(256):
            place = f"blobs/sha256/{number:02x}"
            yield from sorted((one.path, one.size) for one in self.inside(place))

    def pack_places(self) -> list[Path]:
        """Every pack that is there."""
        return sorted(one.path for one in self.inside("packs"))

    def listings(self) -> list[Path]:
        """Every listing that is here, in the order of their ids."""
        return sorted(one.path for one in self.inside("listings"))

    def partials(self, key: str = "") -> list[Path]:
        """Every transfer that isn't whole, or those of one file or source."""
        found = (one.path for one in self.inside("partial") if one.is_directory)
        return sorted(one for one in found if one.name.startswith(key) and one.name[:4] != "tmp.")

    def fingerprints(self) -> Iterator[Path]:
        """Every record of a fingerprint of its own."""
        for place in self.inside("fingerprints"):
            if place.path.name != "small":
                yield from (one.path for one in self.inside(place.name))

    def listing(self, listing_id: str) -> Path:
        """Where the listing is or will be."""
        return self.root / "listings" / f"{listing_id}.json"

    def reference(self, lineage: str, address: str) -> Path:
        """Where the reference of one resource is or will be."""
        return self.root / "references" / _file_name(lineage) / f"{_file_name(address)}.json"

    def prepare(self) -> None:
        """Make the directories that writers need. What is missing above the mirror is nobody else's, wherever it is. A power cut leaves them there."""
        missing = list(takewhile(lambda one: not one.exists(), (self.root, *self.root.parents)))
        make_private_directory(self.root.parent)
        make_directory(self.root)
        make_durable((one.parent for one in missing), self.root)
        below.make_directory(self.root, self.partial)

    def has_blob(self, sha256: str, size: int) -> bool:
        """Whether the content is there with its size, as a file of its own."""
        return below.file_size(self.blob_name(sha256)) == size

    def known(self, key: str) -> Content | None:
        """What a fingerprint is known to be, if the content is there too."""
        content = self.recorded(key)
        here = content is not None and self.has_blob(content.sha256, content.size)
        return content if here else None

    def learn(self, key: str, content: Content) -> None:
        """Remember what a fingerprint turned out to be, and that such content is here."""
        data = canonical({"version": 1, **asdict(content)})
        for each in {key, content_fingerprint(content.sha256, content.size)}:
            if self.known(each) != content:
                write_record(self._fingerprint(each), data, self.partial, durable=False)

    def key_of(self, sha256: str, size: int) -> str:
        """The fingerprint by which a large content was mirrored: its own, unless another turned out to be this content."""
        own = content_fingerprint(sha256, size)
        keys = (one.stem for one in sorted(self.fingerprints()))
        known = ((key, self.recorded(key)) for key in keys if key != own)
        return next((key for key, one in known if one and one.sha256 == sha256), own)

    def chunk_count(self, size: int) -> int:
        """How many chunk digests a file of this size has: none where one chunk is all."""
        return -(-size // self.chunk_bytes) if size > self.chunk_bytes else 0

    def load_listing(self, listing_id: str, place: Path | None = None) -> Listing | None:
        """The listing, or None if it is not here, or in its ``place`` if it has another. StorageError when it is not what its name says."""
        path = place or self.listing(listing_id)
        return self._looked_at(path, lambda: load_listing(path, listing_id))

    def check_listing(self, listing_id: str) -> None:
        """The same StorageError, its files read and not kept."""
        path = self.listing(listing_id)
        self._looked_at(path, lambda: check_listing(path))

    def files_of(self, listing_id: str) -> Iterator[ListedFile]:
        """The files of a listing that was right when it was checked; none of one that has gone since."""
        with contextlib.suppress(FileNotFoundError):
            yield from read_files(self.listing(listing_id))

    def _looked_at(self, path: Path, look: Callable[[], T]) -> T | None:
        if below.file_size(str(path)) is None:
            return None
        try:
            return look()
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(path, str(error)) from None

    def has_listing(self, listing_id: str) -> bool:
        """Whether the listing is here, and is what its name says: to hash it costs far less than to read it."""
        return file_sha256(self.listing(listing_id)) == listing_id

    def read_reference(self, path: Path) -> dict[str, Any] | None:
        """A reference's record, or None where there is none. StorageError when it is not what was written."""
        try:
            return reference_in(below.read(self.root, path))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise _damaged_reference(path, str(error)) from None

    def write_reference(self, record: Mapping[str, Any]) -> Path:
        """Write a reference's record; where it is."""
        path = self.reference(record["lineage"], record["address"])
        write_record(path, checked(record), self.partial)
        return path

    def recorded(self, key: str) -> Content | None:
        """What a fingerprint turned out to be when it was last mirrored, whether the content is there or not."""
        try:
            record = json.loads(below.read(self.root, self._fingerprint(key)))
            content = Content(record["sha256"], record["size"], tuple(record["chunks"]))
            is_said = all(map(is_digest, (content.sha256, *content.chunks)))
            is_whole = len(content.chunks) == self.chunk_count(content.size)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return content if is_said and is_whole else None

    def _fingerprint(self, key: str) -> Path:
        return self.root / "fingerprints" / key[:2] / f"{key}.json"


def _file_name(text: str) -> str:
    """One file name for any text, the same for the same text only, and readable where that is possible."""
    name = (
        quote(text, safe="=,@+ ").replace(".", "%2E")
        if text in (".", "..")
        else quote(text, safe="=,@+ ")
    )
    if len(name) <= 200:
        return name
    return f"{name[:120]}~{hex_digest(text)}"


def _damaged_reference(path: Path, why: str) -> StorageError:
    return StorageError(
        f"{path} is damaged: {why}",
        "trainctl mirror verify --repair writes it anew in the project whose it is. If that is no more, remove the file.",
        code=DAMAGED,
    )


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(
        f"{path} is damaged: {why}",
        "trainctl mirror verify --repair writes it anew, or the next apply of the project whose it is.",
        code=DAMAGED,
    )


def unless_damaged(read: Callable[[], T | None]) -> T | None:
    """What is read by who can do without: what is damaged is as good as not there."""
    try:
        return read()
    except StorageError as error:
        if error.code != DAMAGED:
            raise
        return None
