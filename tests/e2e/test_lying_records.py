"""A shared mirror in which somebody says that other files are those of a private repository: nobody runs them."""

from __future__ import annotations

import hashlib
import re

from tests.support.hub import serve
from tests.support.project import Project
from tests.support.wanting import JOB, connect, wants
from trainctl.base.listing import ListedFile, Listing, ResolvedSource, SourceFile
from trainctl.weights.mirror.disk import write_record
from trainctl.weights.mirror.layout import Content, Layout, Reference, fingerprint
from trainctl.weights.mirror.records import Records

GOOD, EVIL = b'{"code": "good"}', b'{"code": "evil"}'
OTHER = 'weights: {g: {source: "file:./d", mount_location: m}}\n'


def lie(project: Project, resolved: ResolvedSource) -> None:
    """Somebody else's reference, listing and record of the source's only file."""
    layout, sha256 = Layout(project.mirror), hashlib.sha256(EVIL).hexdigest()
    (file,) = resolved.files
    listing = Listing((ListedFile(file.path, len(EVIL), sha256),))
    write_record(layout.listing(listing.id), listing.to_bytes(), layout.partial)
    reference = Reference("others", "weights.x", "ben", "ben")
    layout.write_reference({**reference.record({}, resolved, listing.id, 1e9), "holder": None})
    records = Records.of(layout, resolved.source)
    records.note(fingerprint(resolved, file), Content(sha256, len(EVIL)))
    records.flush()


def test_what_others_say_of_a_private_repository_is_not_run(fresh: Project) -> None:
    """A plan has it as mirrored; apply reads it, and asks upstream, with the token that it hadn't needed."""
    with serve() as hub:
        commit = hub.add("acme/model", {"config.json": GOOD}, private=True)
        hub.token = "hf_" + "t" * 30
        connect(fresh, hub)
        fresh.variables["HF_TOKEN"] = hub.token
        fresh.write({"d/config.json": EVIL.decode(), "trainctl.yaml": OTHER})
        fresh.run("apply", "--auto-approve")
        made = hub.repos[("models", "acme/model")].commits[commit]["config.json"]
        file = SourceFile("config.json", len(GOOD), f"git:{made.git_oid}")
        lie(fresh, ResolvedSource("hf://acme/model", commit, (file,), endpoint=hub.url))
        wants(fresh, "hf://acme/model", JOB)
        planned = fresh.run("plan")
        fresh.run("apply", "--auto-approve", "--wait")
        said = fresh.run("logs", "job.sft").stdout

    assert re.search(r"weights\.model +\w+ +1 +16 B +all", planned.stdout)
    assert GOOD.decode() in said
    assert EVIL.decode() not in said
