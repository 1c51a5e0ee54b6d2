"""``trainctl ui``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

from trainctl.base.lazy_dataclass import replace
from trainctl.cli import options
from trainctl.cli.options import option
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import missing_extra
from trainctl.operations.workspace import Workspace


def ui_command(
    session: CliSession,
    port: Annotated[
        int, option("--port PORT", "Local port [default: a free one]", show_default=False)
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

    def open_() -> Workspace:
        return Workspace(replace(open_workspace(session).settings, read_only=True))

    with closing(PageRenderer(open_, static=out is not None)) as site:
        if out is None:
            serve(site, port, session.output)
        else:
            session.output.print(f"Wrote {export(site, out)} pages to {out}.")
    return 0
