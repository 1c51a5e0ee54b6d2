"""The server of the pages, for this user's browser on this machine only, and their export to files."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from trainctl.base.filesystem.files import write_atomic
from trainctl.errors import TrainctlError, UsageError
from trainctl.model.address import Kind
from trainctl.ui.pages import POLICY, PageRenderer
from trainctl.ui.runs import Query, jobs_page, run_page

ADDRESS = "127.0.0.1"
_HOSTS = frozenset({ADDRESS, "localhost"})
"""Names by which a browser may know the server; its port may be forwarded."""
_HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
UVICORN: dict[str, Any] = {"log_level": "error", "access_log": False, "lifespan": "off"}
_STATIC = {
    "ui.js": ("trainctl.ui", "text/javascript"),
    "icon.svg": ("trainctl.ui", "image/svg+xml"),
    "page.css": ("trainctl.views.plan", "text/css"),
}


class PageApplication:
    """Answers only requests that read, come from its own pages, and know the token; an ASGI application."""

    def __init__(self, site: PageRenderer, token: str, cookie: str) -> None:
        self._site = site
        self._token = token
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        answer = self._refusal(request)
        if answer is None:
            answer = await run_in_threadpool(self._answer, request)
        answer.headers.update(_HEADERS)
        await answer(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host.partition(":")[0] not in _HOSTS:
            return PlainTextResponse("Unknown host. Use the URL that trainctl ui printed.", 421)
        if origin is not None and origin != f"http://{host}":
            return PlainTextResponse("Requests of other pages are refused.", 403)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("This page only reads.", 405, {"Allow": "GET, HEAD"})
        return None

    def _answer(self, request: Request) -> Response:
        path = request.url.path.strip("/")
        if self._is_token(request.query_params.get("token", "")):
            answer = RedirectResponse(request.url.path, 303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            return answer
        if not self._is_token(request.cookies.get(self._cookie, "")):
            return PlainTextResponse("Open the complete URL that trainctl ui printed.", 401)
        if (name := path.removeprefix("static/")) in _STATIC and name != path:
            return Response(_static_bytes(name), media_type=_STATIC[name][1])
        try:
            return HTMLResponse(_render(self._site, path, parse_qs(request.url.query)))
        except (TrainctlError, ValueError) as error:
            status = 404 if isinstance(error, UsageError) else 500
            return PlainTextResponse(self._site.masked(str(error)), status)

    def _is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode(), self._token.encode())


def serve(site: PageRenderer, port: int, announce: Callable[[str], None]) -> None:
    """Serve pages on 127.0.0.1 until Ctrl-C; ``announce`` gets the URL with the token."""
    with socket.create_server((ADDRESS, port)) as listener:
        port, token = listener.getsockname()[1], secrets.token_urlsafe(32)
        app = PageApplication(site, token, f"trainctl_{port}")
        site.usage()  # takes longest of what the first page needs, and asks no host
        announce(f"http://{ADDRESS}:{port}/?token={token}")
        uvicorn.Server(uvicorn.Config(app, **UVICORN)).run([listener])


def export(site: PageRenderer, folder: Path) -> int:
    """Write all pages as files; return how many."""
    jobs = {at: job for at, job in site.state().resources.items() if at.kind is Kind.JOB}
    runs = [f"runs/{run['id']}" for job in jobs.values() for run in job.outputs.get("runs", ())]
    pages = ["", "nodes", "plan", "jobs", *sorted({f"jobs/{at.name}" for at in jobs}), *runs]
    contents = {f"{path or 'index'}.html": _render(site, path, {}).encode() for path in pages}
    contents |= {f"static/{name}": _static_bytes(name) for name in _STATIC}
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / name, content)
    return len(pages)


def _render(site: PageRenderer, path: str, query: Query) -> str:
    kind, _, name = path.partition("/")
    if kind == "runs" and name:
        return run_page(site, name, query)
    if kind == "jobs":
        return jobs_page(site, name, query)
    pages = {"": site.start, "nodes": site.nodes, "plan": site.plan}
    if path not in pages:
        raise UsageError(f"page {path} not found")
    return pages[path]()


def _static_bytes(name: str) -> bytes:
    return files(_STATIC[name][0]).joinpath(name).read_bytes()
