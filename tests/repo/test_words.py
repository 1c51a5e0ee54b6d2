"""The project speaks of itself alone: no path of a machine, no registry, no address of a package index."""

from __future__ import annotations

import re

from tests.support.projects.program import ROOT, files_of_project

# Written in pieces, so that this file does not hold what it looks for.
FOREIGN = re.compile(
    "|".join(
        [
            r"(?<![\w.$}/])/wo" + r"rk/",
            r"/root/\.py" + r"env",
            r"/tmp/pre" + r"amble",
            r"files\.python" + r"hosted",
            r"pypi\.o" + r"rg/simple",
            r"index-u" + r"rl",
            r"registry\.npm" + r"js",
        ]
    )
)


def test_no_trace_of_a_machine_or_a_registry() -> None:
    matches = []
    for name in files_of_project():
        path = ROOT / name
        if path.suffix != ".safetensors" and path.is_file():
            text = path.read_text(errors="replace")
            matches += [f"{name}: {match[0]}" for match in FOREIGN.finditer(text)]
    assert not matches


def test_no_lock_file_of_an_installer() -> None:
    """Lock files of installers hold the addresses of their registry, so they stay out."""
    names = {"uv.lock", "poetry.lock", "Pipfile.lock", "pdm.lock"}
    assert names & set((ROOT / ".gitignore").read_text().split()) == {"uv.lock"}
    assert not [name for name in names - {"uv.lock"} if (ROOT / name).exists()]
