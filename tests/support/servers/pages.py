"""The pages of ``trainctl ui`` in this process, and the browser that shows them."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Locator, Page, sync_playwright

from tests.support.projects.project import ProjectHarness
from trainctl.model.redaction import Redactor
from trainctl.operations.workspace import Workspace, WorkspaceSettings
from trainctl.ui.pages import PageQueries, PageRenderer
from trainctl.ui.server import ADDRESS, UVICORN, page_application

CHROMIUM = "chromium-headless-shell"


def site_of(project: ProjectHarness, patience: float | None = None) -> PageRenderer:
    """The pages of a project, whose queries wait for their answers."""

    def open_() -> Workspace:
        environ, directory = project.environment, project.directory
        return Workspace(
            WorkspaceSettings(directory, environ, redactor, lambda _: {}, read_only=True)
        )

    redactor = Redactor()
    site = PageRenderer(open_)
    site.queries = PageQueries(patience)
    return site


@contextmanager
def served(site: PageRenderer) -> Iterator[str]:
    """Serve pages from a thread; the URL with the token."""
    with socket.create_server((ADDRESS, 0)) as listener:
        port = listener.getsockname()[1]
        app = page_application(site, "the-token", f"trainctl_{port}")
        server = uvicorn.Server(uvicorn.Config(app, **UVICORN))
        thread = threading.Thread(target=server.run, args=([listener],), name="pages")
        thread.start()
        try:
            yield f"http://{ADDRESS}:{port}/?token=the-token"
        finally:
            server.should_exit = True
            thread.join(20)
            site.close()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium without windows."""
    program = shutil.which(CHROMIUM)
    if program is None:
        pytest.skip(f"it needs {CHROMIUM}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Visit:
    """A browser's visit, with what must stay empty: messages of the console, and requests to elsewhere."""

    page: Page
    origin: str
    faults: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.origin}/{path}")
        return self.page

    def follow(self, element: Locator) -> None:
        """Click, and wait until the next page is loaded and its script has run."""
        with self.page.expect_navigation():
            element.click()

    def text(self, selector: str = "main") -> str:
        return self.page.locator(selector).inner_text()

    def width_beyond_window(self) -> int:
        """Pixels by which the page can be scrolled to the right."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))


def visit(context: BrowserContext, url: str) -> Visit:
    """Open the URL with the token in a new page, and watch all that happens there."""
    parts = urlsplit(url)
    found = Visit(context.new_page(), f"{parts.scheme}://{parts.netloc}")

    def requested(address: str) -> None:
        found.requests.append(address)
        if not address.startswith(f"{found.origin}/"):
            found.faults.append(f"request to {address}")

    found.page.on("console", lambda message: found.faults.append(message.text))
    found.page.on("pageerror", lambda error: found.faults.append(str(error)))
    found.page.on("request", lambda request: requested(request.url))
    found.page.goto(url)
    return found
