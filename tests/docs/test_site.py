"""The static site is built without a warning and loads nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.projects.program import ROOT

pytestmark = pytest.mark.integration

_LOADED = re.compile(
    r'<(?:script|img|iframe)[^>]*\bsrc="(https?:)?//|<link[^>]*\bhref="(https?:)?//'
)


def test_the_site_is_built(tmp_path: Path) -> None:
    """The site is built without warnings; no page loads a font, script or image from another server."""
    if importlib.util.find_spec("material") is None:
        pytest.skip("needs mkdocs-material (uv pip install --group docs)")
    words = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        ".mkdocs.yml",
        "-d",
        str(tmp_path),
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    assert [page.name for page in pages if _LOADED.search(page.read_text())] == []
