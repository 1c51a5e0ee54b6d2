"""The commands of the guides do what the guides show; in a file of their own, so that two workers share the pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.executed_pages import check_page, executed_pages
from tests.docs.pages import PAGES, Page

pytestmark = pytest.mark.integration

EXECUTED = executed_pages(path for path in PAGES if path.parent.name == "guides")


@pytest.mark.parametrize("page", EXECUTED, ids=lambda page: page.name)
def test_the_commands_do_what_the_page_shows(page: Page, tmp_path: Path) -> None:
    """Outputs and exit codes are those that are shown, apart from values that differ each time."""
    check_page(page, tmp_path)
