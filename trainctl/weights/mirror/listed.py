"""The listing of a source in a mirror's directory: written when all of it is here, and anew where it was lost."""

from __future__ import annotations

from typing import Mapping, Sequence

from trainctl.base.files import make_durable
from trainctl.base.listing import Listing, ResolvedSource, SourceFile, listed_arriving
from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.disk import write_record
from trainctl.weights.mirror.fetch import by_fingerprint, parts, present
from trainctl.weights.mirror.layout import Content, Layout, fingerprint
from trainctl.weights.mirror.rebuild import relearn
from trainctl.weights.mirror.records import Records


def have(
    contents: Contents, records: Records, groups: Mapping[str, Sequence[SourceFile]]
) -> dict[str, Content]:
    """The same as ``present``, where a content whose record was lost is read again."""
    found = present(contents, records, groups)
    for key, files in groups.items():
        if key not in found and files[0].sha256 is not None:
            content = relearn(contents.layout, files[0].sha256, files[0].size)
            found.update({key: content} if content else {})
    return found


def write_listing(layout: Layout, listing: Listing) -> bool:
    """Have the listing here; False if some of its content isn't."""
    contents = Contents(layout)
    places = {contents.named_in(file.sha256, file.size) for file in listing.files}
    if None in places:
        return False
    if not layout.has_listing(listing.id):
        make_durable(filter(None, places), layout.partial)
        write_record(layout.listing(listing.id), listing.pieces(), layout.partial)
    return True


def listed_anew(layout: Layout, resolved: ResolvedSource, listing_id: str) -> bool:
    """Write a listing that was lost, if what is here of its source makes it up; whether it does.

    Nobody has to know the patterns: what they left out has not come, but where others have it, and the id tells whether that is so.
    """
    contents, files = Contents(layout), listed_arriving()
    records = Records.of(layout, resolved.source)
    for part in parts(resolved):
        found = have(contents, records, by_fingerprint(part))
        keys = ((file.path, fingerprint(part, file)) for file in part.files)
        files.add(found[key].listed(path) for path, key in keys if key in found)
    listing = Listing(files.all())
    if listing.id != listing_id:
        return False
    layout.prepare()
    return write_listing(layout, listing)
