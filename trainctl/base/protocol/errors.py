"""Errors on their way between an operator and a program on a node: the same class, words and code on both sides."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from trainctl.errors import SourceBusy, TrainctlError, named


def error_to_json(error: TrainctlError) -> Dict[str, Any]:
    """The form that travels."""
    return {
        "kind": type(error).__name__,
        "summary": error.summary,
        "detail": error.detail,
        "code": error.code,
        "retry_after": error.retry_after if isinstance(error, SourceBusy) else None,
    }


def error_from_json(value: Mapping[str, Any]) -> TrainctlError:
    """Read what ``error_to_json`` returned; an unknown class becomes TrainctlError."""
    kind = named(str(value.get("kind"))) or TrainctlError
    more = {"retry_after": value.get("retry_after")} if issubclass(kind, SourceBusy) else {}
    return kind(str(value["summary"]), str(value["detail"]), code=value.get("code"), **more)
