"""The generated files: the reference below ``docs/reference``, ``llms.txt`` and the manifest's schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generate import commands, environment, json_output, manifest, pages, protocol

ROOT = Path(__file__).parents[2]
GENERATED: Mapping[str, Callable[[], str]] = {
    "schemas/trainctl_schemas/v1/manifest.json": manifest.schema_text,
    "docs/reference/commands.md": commands.page,
    "docs/reference/manifest.md": manifest.page,
    "docs/reference/json.md": json_output.page,
    "docs/reference/exit-codes.md": pages.exit_codes_page,
    "docs/reference/errors.md": pages.errors_page,
    "docs/reference/environment.md": environment.page,
    "docs/reference/protocol.md": protocol.page,
    "docs/reference/benchmarks.md": pages.benchmarks_page,
    "llms.txt": pages.llms_text,
}
"""The function that returns the text of each file; pages are made from the schema, which comes first."""


def stale_files(root: Path = ROOT) -> list[str]:
    """The files whose text is not the generated one."""
    return [
        name
        for name, text in GENERATED.items()
        if not (root / name).is_file() or (root / name).read_text(encoding="utf-8") != text()
    ]
