"""Points of the numbers that a run reported, by key: thinning, their JSON, and lookups by step.

Of more than 20,000 points every second, fourth and so on is kept, and always the first, last, lowest and highest.
"""

from __future__ import annotations

import base64
import math
import zlib
from array import array
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from trainctl.base.protocol.runs import KeyResult, ResultPoint

MAX_KEYS = 100
MAX_POINTS = 20_000
_POINT_BYTES = 24

Point = Tuple[int, float, Optional[float], float]
"""Number of the report of its key, from 0; value, step and time."""

_NONE: Point = (0, 0.0, None, 0.0)


def _point(row: Sequence[Any]) -> Point:
    number, value, step, time = row
    return int(number), float(value), None if step is None else float(step), float(time)


class KeyPoints:
    """Points of one key in the order of their reports.

    ``kept``: values, steps and Unix times of each ``stride``-th one; a step is NaN if it is unknown.
    """

    __slots__ = ("count", "kept", "last", "max", "min", "stride")

    def __init__(self, row: Optional[Mapping[str, Any]] = None) -> None:
        """``row``: all but the kept points, as in ``row``."""
        row = row or {"count": 0, "stride": 1, **dict.fromkeys(("last", "min", "max"), _NONE)}
        self.count, self.stride = int(row["count"]), int(row["stride"])
        self.last, self.min, self.max = (_point(row[name]) for name in ("last", "min", "max"))
        self.kept: List[array[float]] = [array("d"), array("d"), array("d")]

    def add(self, value: float, step: Optional[float], time: float) -> None:
        """Add the newest point."""
        number = self.count
        self.last = point = (number, value, step, time)
        if number == 0 or value < self.min[1]:
            self.min = point
        if number == 0 or value > self.max[1]:
            self.max = point
        self.count = number + 1
        if number % self.stride == 0:
            values, steps, times = self.kept
            values.append(value)
            steps.append(math.nan if step is None else step)
            times.append(time)
            if len(values) > MAX_POINTS - 3:  # besides the last, lowest and highest
                self.kept = [column[::2] for column in self.kept]
                self.stride *= 2

    @property
    def row(self) -> Dict[str, Any]:
        """All but the kept points, as JSON."""
        extremes = {"last": self.last, "min": self.min, "max": self.max}
        return {"count": self.count, "stride": self.stride, **extremes}

    @property
    def size(self) -> int:
        """Bytes of the kept points."""
        return -(-self.count // self.stride) * _POINT_BYTES

    def load(self, data: bytes, known: Sequence[array[float]] = ()) -> None:
        """Load the kept points: bytes of the columns, of all or those after the known ones; ValueError if some are missing."""
        length = len(data) // len(self.kept)
        start, rest = divmod(self.size - len(data), _POINT_BYTES)
        if rest or not 0 <= start <= len(known[0] if known else ()):
            raise ValueError("points are missing")
        for number, column in enumerate(self.kept):
            column += known[number][:start] if known else array("d")
            column.frombytes(data[number * length : (number + 1) * length])

    def to_json(self, since: Sequence[int] = (0, 0)) -> Dict[str, Any]:
        """Return the JSON; ``since``: stride and number of the kept points that the reader has."""
        start = since[1] if since[0] == self.stride else 0
        packed = zlib.compress(b"".join(column[start:].tobytes() for column in self.kept), 1)
        return {**self.row, "data": base64.b64encode(packed).decode()}

    @property
    def result(self) -> KeyResult:
        """The last value, the lowest and the highest, each with its step."""
        last, low, high = (
            ResultPoint(value=value, step=None if step is None else int(step))
            for _, value, step, _ in (self.last, self.min, self.max)
        )
        return {"last": last, "min": low, "max": high}

    @property
    def position(self) -> List[int]:
        """Stride and number of the kept points, for ``to_json``."""
        return [self.stride, len(self.kept[0])]

    def columns(self) -> List[array[float]]:
        """Return values, steps (NaN: unknown) and times of all points."""
        merged = [column[:] for column in self.kept]
        for number, value, step, time in sorted({self.last, self.min, self.max}, reverse=True):
            if number % self.stride:
                row = (value, math.nan if step is None else step, time)
                for column, item in zip(merged, row):
                    column.insert(number // self.stride + 1, item)
        return merged

    def value_at(self, step: float) -> Optional[float]:
        """Return the value of the highest step up to this one, of several the last; None if there is none."""
        values, steps, _ = self.columns()
        found = [(at, number) for number, at in enumerate(steps) if at <= step]
        return values[max(found)[1]] if found else None


RunPoints = Dict[str, KeyPoints]
"""Points of a run by key."""


def points_json(points: RunPoints, since: Optional[Mapping[str, Sequence[int]]] = None) -> Any:
    """Return the JSON of a run's points; ``since``: positions by key that the reader has."""
    known = since or {}
    return {key: of_key.to_json(known.get(key, (0, 0))) for key, of_key in points.items()}


def update_points(points: RunPoints, document: Any) -> None:
    """Add the points of a JSON, which has all or those after the positions; ValueError if it is invalid."""
    try:
        for key, row in list(document.items())[:MAX_KEYS]:
            new, known = KeyPoints(row), points.get(key)
            packed = base64.b64decode(row["data"], validate=True)
            data = zlib.decompressobj().decompress(packed, MAX_POINTS * _POINT_BYTES)
            new.load(data, known.kept if known else ())
            points[key] = new
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"invalid points: {error}") from None
