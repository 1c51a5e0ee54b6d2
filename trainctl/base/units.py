"""Parse and format sizes and durations.

Sizes are decimal (1 GB = 10^9 bytes) unless the unit is Ki, Mi, Gi, …
"""

from __future__ import annotations

from typing import Optional, Tuple

from trainctl.base.lazy_pattern import compile_lazily

_SIZE = compile_lazily(r"(\d+(?:\.\d+)?)\s*([kKMGTPE]?i?)B?")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_DURATION = compile_lazily(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


def parse_size(text: str | int) -> int:
    """Return the bytes of ``2TB``, ``512Mi`` or a plain number; ValueError otherwise."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; use for example 500GB, 2TB or 64Gi")
    unit = match[2].upper()
    base = 1024 if unit.endswith("I") else 1000
    return int(float(match[1]) * base ** _POWERS[unit.replace("I", "")])


def parse_duration(text: str | int | float) -> float:
    """Return the seconds of ``1h30m``, ``2d`` or a number; ValueError if invalid."""
    if isinstance(text, (int, float)):
        return float(text)
    match = _DURATION.fullmatch(text.strip())
    if match is None or not match[0]:
        raise ValueError(f"{text!r} is not a duration; use for example 30s, 15m, 2h or 1d")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def format_bytes(count: float) -> str:
    """Format bytes as ``1.5 GB``: decimal units, at most three significant digits."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 999.5 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def format_duration(seconds: float) -> str:
    """Format seconds in their two largest units: ``2d 4h``, ``3m 20s``, ``1.4 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (secs, "s")]
    first = next(index for index, (value, _) in enumerate(parts) if value)
    return " ".join(f"{value}{unit}" for value, unit in parts[first : first + 2] if value)


def parse_accelerator(text: Optional[str]) -> Tuple[str, Optional[int]]:
    """Return type and number of ``TYPE:COUNT``, ``TYPE`` or ``none``; by default any type, and None for all."""
    if not text:
        return "", None
    kind, _, count = text.partition(":")
    return ("", 0) if kind == "none" else (kind, int(count or 1))
