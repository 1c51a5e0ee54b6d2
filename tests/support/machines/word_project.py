"""A project whose weights are one word, and whose job says it on every host that it gets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.machines.hosts import FakeHost, HostLab, client_project
from tests.support.projects.project import ProjectHarness

WORD = "these-are-the-weights"
_MANIFEST = """\
project: {name: demo}
MIRROR
clusters: {lab: {provider: ssh, connect_timeout: 5, hosts: HOSTS}}
weights: {tiny: {source: "file:./weights"}}
jobs:
  sft:
    code: ./src
    compute: {node_count: COUNT}
    weights: [tiny]
    runtime: {start_commands: ["cat weights/weights/word"]}
"""


@contextmanager
def word_project(
    lab: HostLab, top: Path, hosts: Sequence[FakeHost], *, here: bool = False
) -> Iterator[ProjectHarness]:
    """On all of the hosts; the mirror on the first of them, or ``here`` with the operator."""
    with client_project(lab, top) as project:
        text = _MANIFEST.replace("HOSTS", json.dumps([host.settings for host in hosts]))
        text = text.replace("COUNT", str(len(hosts)))
        text = text.replace("MIRROR", f'mirror: {{url: "file://{project.mirror}"}}' if here else "")
        project.write({"trainctl.yaml": text, "src/nothing": "", "weights/word": WORD})
        yield project
