"""The commands of the README and of pages that are no guides do what the pages show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.executed_pages import check_page, executed_pages
from tests.docs.pages import PAGES, README, Page

pytestmark = pytest.mark.integration

EXECUTED = executed_pages((README, *(path for path in PAGES if path.parent.name != "guides")))


@pytest.mark.parametrize("page", EXECUTED, ids=lambda page: page.name)
def test_the_commands_do_what_the_page_shows(page: Page, tmp_path: Path) -> None:
    """Outputs and exit codes are those that are shown, apart from values that differ each time."""
    check_page(page, tmp_path)
