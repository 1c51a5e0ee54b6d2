"""How a run's commands are started and described."""

from __future__ import annotations

from pathlib import Path

from trainctl.node.environment.workspace import describe_failure


def test_a_command_that_failed_is_shown_as_it_is_written(tmp_path: Path) -> None:
    """With quotes of both kinds; only control characters are escaped."""
    step = tmp_path / "step"
    step.write_text("2")
    command = "python3 -c 'raise SystemExit(\"é\")'\x1b[31m\nsecond line"
    text = describe_failure(["true", command], step, 3)
    assert text == (
        "start command 2 of 2 exited with 3: python3 -c 'raise SystemExit(\"é\")'\\x1b[31m"
    )
