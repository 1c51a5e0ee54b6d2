"""``trainctl ui``."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from trainctl.base.lazy_dataclass import replace
from trainctl.cli import options
from trainctl.cli.options import option
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import StorageError, UsageError, missing_extra
from trainctl.operations.workspace import Workspace


def ui_command(
    session: CliSession,
    port: Annotated[
        int, option("--port N", "Local port [default: a free one]", show_default=False)
    ] = 0,
    out: Annotated[
        Path | None, option("--out DIR", "Write the pages to files instead", options.OUTPUT)
    ] = None,
) -> int:
    """Show jobs, runs, nodes and the plan in a browser.

    Serves pages on 127.0.0.1 until Ctrl-C; the URL has a token. The pages change nothing.
    """
    try:
        from trainctl.ui.pages import PageRenderer
        from trainctl.ui.server import export, serve
    except ModuleNotFoundError as error:
        raise missing_extra("trainctl ui", str(error.name), "ui") from None

    if not 0 <= port < 2**16:
        raise UsageError(f"--port {port}: must be from 0 to 65535")

    def open_() -> Workspace:
        settings = open_workspace(session).settings
        return Workspace(replace(settings, read_only=True))

    def announce(url: str) -> None:
        session.output.print(f"{url}\nPress Ctrl-C to end.")
        session.output.flush()

    site = PageRenderer(open_) if out is None else PageRenderer(open_, None, static=True)
    try:
        if out is not None:
            session.output.print(f"Wrote {export(site, out)} pages to {out}.")
            return 0
        with suppress(KeyboardInterrupt):
            serve(site, port, announce)
    except OSError as error:
        place = f"port {port}" if out is None else str(out)
        raise StorageError(f"cannot use {place}: {error.strerror}") from error
    finally:
        site.close()
    return 0
