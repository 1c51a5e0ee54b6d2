"""How observed runs go among the recorded ones."""

from __future__ import annotations

from typing import Any

from trainctl.ledger.reducer import merge_outputs


def run(name: str, status: str = "RUNNING", **more: Any) -> dict[str, Any]:
    return {"id": name, "status": status, "generation": 1, "ended_at": None, **more}


def test_a_run_goes_in_by_its_id() -> None:
    """One observer's run doesn't overwrite another's, whether it comes alone or in a list."""
    outputs = {"runs": [run("a"), run("b")]}
    merged = merge_outputs(outputs, {"run": run("a", "COMPLETED", ended_at=5.0)})
    assert [(one["id"], one["status"]) for one in merged["runs"]] == [
        ("a", "COMPLETED"),
        ("b", "RUNNING"),
    ]
    merged = merge_outputs(outputs, {"runs": [run("c")]})
    assert [one["id"] for one in merged["runs"]] == ["a", "b", "c"]


def test_an_end_is_final() -> None:
    """A look made before the end that arrives after it changes nothing; a later generation does."""
    outputs = {"runs": [run("a", "COMPLETED", ended_at=5.0)]}
    assert merge_outputs(outputs, {"run": run("a")}) is outputs
    assert merge_outputs(outputs, {"run": run("a", generation=0)}) is outputs
    later = merge_outputs(outputs, {"run": run("a", generation=2)})
    assert later["runs"][0]["status"] == "RUNNING"


def test_nothing_new_is_the_same_object() -> None:
    """Whoever asks whether there is anything to append gets a clear no."""
    outputs = {"runs": [run("a")], "x": 1}
    assert merge_outputs(outputs, {"x": 1, "run": run("a")}) is outputs
    assert merge_outputs(outputs, {}) is outputs


def test_that_an_end_was_wanted_is_kept() -> None:
    """Who looked before that was said, and tells it afterwards, doesn't take it back; a later attempt is another."""
    outputs = {"runs": [run("a", stop_requested=True)]}
    seen = merge_outputs(outputs, {"run": run("a", "LOST")})["runs"][0]
    assert (seen["status"], seen["stop_requested"]) == ("LOST", True)
    again = merge_outputs(outputs, {"run": run("a", generation=2)})["runs"][0]
    assert "stop_requested" not in again
