"""The server of the pages, for this user's browser on this machine only, and their export to files."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from trainctl.base.filesystem.files import write_atomic
from trainctl.errors import TrainctlError, UsageError
from trainctl.ledger.usage import run_usage
from trainctl.model.address import Kind
from trainctl.ui.pages import POLICY, PageRenderer
from trainctl.ui.runs import jobs_page, run_page
from trainctl.views.terminal.output import TerminalOutput

ADDRESS = "127.0.0.1"
_HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
UVICORN: dict[str, Any] = {"log_level": "error", "access_log": False, "lifespan": "off"}


def page_application(site: PageRenderer, token: str, cookie: str) -> Starlette:
    """Answer only requests that read, come from these pages, and know the token."""

    def is_token(text: str) -> bool:
        return secrets.compare_digest(text.encode(), token.encode())

    def answer(request: Request) -> Response:
        if request.headers.get("origin") not in (None, f"http://{request.headers['host']}"):
            return PlainTextResponse("Requests of other pages are refused.", 403, _HEADERS)
        if is_token(request.query_params.get("token", "")):
            redirect = RedirectResponse(request.url.path, 303, _HEADERS)
            redirect.set_cookie(cookie, token, httponly=True, samesite="strict")
            return redirect
        if not is_token(request.cookies.get(cookie, "")):
            return PlainTextResponse("Open the URL that trainctl ui printed.", 401, _HEADERS)
        try:
            page = _render(site, request.path_params["path"], request.query_params)
        except (TrainctlError, ValueError) as error:
            status = 404 if isinstance(error, UsageError) else 500
            return PlainTextResponse(site.masked(str(error)), status, _HEADERS)
        return HTMLResponse(page, headers=_HEADERS)

    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[ADDRESS, "localhost"])
    return Starlette(routes=[Route("/{path:path}", answer)], middleware=[hosts])


def serve(site: PageRenderer, port: int, output: TerminalOutput) -> None:
    """Serve pages on 127.0.0.1 until Ctrl-C; print the URL with the token."""
    if not 0 <= port < 2**16:
        raise UsageError(f"--port {port}: must be from 0 to 65535")
    with socket.create_server((ADDRESS, port)) as listener, suppress(KeyboardInterrupt):
        port, token = listener.getsockname()[1], secrets.token_urlsafe(32)
        app = page_application(site, token, f"trainctl_{port}")
        site.fold(run_usage)  # takes longest of what the first page needs, and asks no host
        output.print(f"http://{ADDRESS}:{port}/?token={token}\nPress Ctrl-C to end.")
        output.flush()
        uvicorn.Server(uvicorn.Config(app, **UVICORN)).run([listener])


def export(site: PageRenderer, folder: Path) -> int:
    """Write all pages as files; return how many."""
    jobs = {at: job for at, job in site.state().resources.items() if at.kind is Kind.JOB}
    runs = [f"runs/{run['id']}" for job in jobs.values() for run in job.outputs.get("runs", ())]
    pages = ["index", "nodes", "plan", "jobs", *{f"jobs/{at.name}" for at in jobs}, *runs]
    for page in pages:
        file = folder / f"{page}.html"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, _render(site, page, QueryParams()).encode())
    return len(pages)


def _render(site: PageRenderer, path: str, query: QueryParams) -> str:
    kind, _, name = path.removesuffix(".html").partition("/")
    if kind == "runs" and name:
        return run_page(site, name, query)
    if kind == "jobs":
        return jobs_page(site, name, query)
    pages = {"": site.start, "index": site.start, "nodes": site.nodes, "plan": site.plan}
    if name or kind not in pages:
        raise UsageError(f"page {path} not found")
    return pages[kind]()
