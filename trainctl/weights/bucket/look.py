"""What a bucket's mirror can tell before anything moves, and who refers to what is in it."""

from __future__ import annotations

from trainctl.model.files import ResolvedSource
from trainctl.model.packed import packed
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.beating import watched
from trainctl.weights.bucket.shelf import Shelf, at_once
from trainctl.weights.mirror.fetch import by_fingerprint
from trainctl.weights.mirror.known import Known
from trainctl.weights.mirror.layout import fingerprint
from trainctl.weights.mirror.needs import Need


def look_at(shelf: Shelf, resolved: ResolvedSource) -> Known:
    """What is known of a source. Marks are believed here: nothing rests on it but a forecast."""
    whole = shelf.whole(resolved)
    here = whole.digests if whole is not None else _parts(shelf, resolved)
    rows = (
        (here.get(key) or file.sha256, file.size, whole is not None or key in here)
        for file in resolved.files
        for key in [fingerprint(resolved, file)]
    )
    return Known(packed(rows, tuple, lambda *row: row), whole.listing if whole else None)


def _parts(shelf: Shelf, resolved: ResolvedSource) -> dict[str, str]:
    """By fingerprint the sha256 of what is there of a source that isn't whole."""
    here = {one: content.sha256 for one, content in shelf.turned_out(resolved).items()}
    here.update(shelf.marked(resolved).whole)
    announced = [
        (one, files[0].sha256, files[0].size)
        for one, files in by_fingerprint(resolved).items()
        if one not in here and files[0].sha256 is not None
    ]
    answers = at_once(lambda one: shelf.has(one[1], one[2]), announced)
    found = zip(announced, answers, strict=True)
    here.update({one: sha256 for (one, sha256, _), there in found if there})
    return here


def referred(shelf: Shelf) -> list[Need]:
    """Every reference as it is now. StorageError where one can't be read: nothing may be deleted then."""
    listed = list(shelf.objects.list(keys.REFERENCES))
    documents = at_once(lambda one: shelf.document(one.key), listed)
    return [
        watched(one.key, record, one.modified)
        for one, record in zip(listed, documents, strict=True)
        if record
    ]
