"""Blocks of pages are found with their titles, marks and commands."""

from __future__ import annotations

from pathlib import Path

from tests.docs.pages import Command, Page, commands

TEXT = """\
<!-- fixture: ssh gpu-01 s3 -->
# A page

```yaml title="a/b.yaml"
x: 1
```

<!-- not run: needs a GPU -->
```console
$ nvidia-smi
```

```console
$ cat <<EOF
> text
> EOF
text
$ false
# exit code: 1
```

## A page

See [there](#a-page-1) and ![image](x.png).
"""


def test_a_page_is_read(tmp_path: Path) -> None:
    """Files and commands in order, the services, links and anchors."""
    page = Page(tmp_path / "page.md")
    page.path.write_text(TEXT)
    file, not_run, run = page.blocks()
    assert (file.path, file.text, file.is_run) == ("a/b.yaml", "x: 1\n", True)
    assert (not_run.is_run, run.is_run) == (False, True)
    assert commands(run) == [
        Command("cat <<EOF\ntext\nEOF", ("text",), 0, 17),
        Command("false", (), 1, 19),
    ]
    assert page.fixtures == ["ssh", "gpu-01", "s3"]
    assert page.links() == ["#a-page-1", "x.png"]
    assert page.anchors() == {"a-page", "a-page-1"}
