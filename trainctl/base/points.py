"""Points of the numbers that a run reported, by key: thinning, their JSON, and lookups by step.

Of more than 20,000 points every second, fourth and so on is kept, and always the first, last, lowest and highest.
"""

from __future__ import annotations

import base64
import math
import zlib
from array import array
from operator import itemgetter
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from trainctl.base.protocol.runs import KeyResult, ResultPoint

FORMAT = 1
MAX_KEYS = 100
MAX_POINTS = 20_000
_WIDTH = 3
POINT_BYTES = 8 * _WIDTH
"""Size of a kept point: value, step and time in Unix seconds as doubles; the step NaN if it is unknown."""
MAX_BYTES = (MAX_POINTS - 3) * POINT_BYTES
"""Size of the kept points; the last, lowest and highest may be none of them."""

Point = Tuple[int, float, Optional[float], float]
"""Number of the report of its key, from 0; value, step and time."""

_NONE: Point = (0, 0.0, None, 0.0)


def _point(row: Sequence[Any]) -> Point:
    number, value, step, time = row
    return int(number), float(value), None if step is None else float(step), float(time)


class KeyPoints:
    """Points of one key in the order of their reports: ``kept`` has each ``stride``-th one."""

    __slots__ = ("count", "kept", "last", "max", "min", "stride")

    def __init__(self, row: Optional[Mapping[str, Any]] = None) -> None:
        """``row``: all but the kept points, as in ``row``."""
        row = row or {"count": 0, "stride": 1, **dict.fromkeys(("last", "min", "max"), _NONE)}
        self.count: int = row["count"]
        self.stride: int = row["stride"]
        self.last, self.min, self.max = (_point(row[name]) for name in ("last", "min", "max"))
        self.kept = array("d")

    def add(self, value: float, step: Optional[float], time: float) -> None:
        """Add the newest point."""
        number = self.count
        self.last = point = (number, value, step, time)
        if number == 0 or value < self.min[1]:
            self.min = point
        if number == 0 or value > self.max[1]:
            self.max = point
        if number % self.stride == 0:
            self.kept.extend((value, math.nan if step is None else step, time))
        self.count = number + 1

    def thin(self) -> None:
        """Keep every second point, until they are few enough."""
        kept = self.kept
        while len(kept) * 8 > MAX_BYTES:
            halves = array("d", bytes((len(kept) // _WIDTH + 1) // 2 * POINT_BYTES))
            for column in range(_WIDTH):
                halves[column::_WIDTH] = kept[column :: 2 * _WIDTH]
            kept = halves
            self.stride *= 2
        self.kept = kept

    @property
    def row(self) -> Dict[str, Any]:
        """All but the kept points, as JSON."""
        extremes = {"last": self.last, "min": self.min, "max": self.max}
        return {"count": self.count, "stride": self.stride, **extremes}

    def to_json(self, since: Sequence[int] = (0, 0)) -> Dict[str, Any]:
        """Return the JSON; ``since``: stride and number of the kept points that the reader has."""
        start = since[1] if since[0] == self.stride else 0
        columns = [self.kept[start * _WIDTH + column :: _WIDTH] for column in range(_WIDTH)]
        packed = zlib.compress(b"".join(column.tobytes() for column in columns), 1)
        return {**self.row, "start": start, "data": base64.b64encode(packed).decode()}

    def update(self, document: Mapping[str, Any]) -> None:
        """Add the points of a JSON, which has all or those after ``position``; ValueError if it is invalid."""
        try:
            new, start = KeyPoints(document), int(document["start"])
            packed = base64.b64decode(document["data"], validate=True)
            unpacked = zlib.decompressobj().decompress(packed, MAX_POINTS * POINT_BYTES)
            columns = array("d", unpacked)
            rows = len(columns) // _WIDTH
            added = array("d", bytes(rows * POINT_BYTES))
            for column in range(_WIDTH):
                added[column::_WIDTH] = columns[column * rows : (column + 1) * rows]
            kept = self.kept[: start * _WIDTH] + added
            is_complete = len(kept) == -(-new.count // new.stride) * _WIDTH
        except (ArithmeticError, KeyError, TypeError, ValueError, zlib.error) as error:
            raise ValueError(f"invalid points: {error}") from None
        if not is_complete:
            raise ValueError("points are missing")
        self.kept = kept
        self.count, self.stride = new.count, new.stride
        self.last, self.min, self.max = new.last, new.min, new.max

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
        return [self.stride, len(self.kept) // _WIDTH]

    def columns(self) -> Tuple[array[float], array[float], array[float]]:
        """Return values, steps (NaN: unknown) and times of all points."""
        merged = self.kept[:]
        for number, value, step, time in sorted(
            {self.last, self.min, self.max}, key=itemgetter(0), reverse=True
        ):
            if number % self.stride:
                at = (number // self.stride + 1) * _WIDTH
                merged[at:at] = array("d", (value, math.nan if step is None else step, time))
        return merged[0::_WIDTH], merged[1::_WIDTH], merged[2::_WIDTH]

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
    keys = {key: of_key.to_json(known.get(key, (0, 0))) for key, of_key in points.items()}
    return {"format": FORMAT, "keys": keys}


def update_points(points: RunPoints, document: Any) -> None:
    """Add the points of a JSON; ValueError if it is invalid or of a newer format."""
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, dict) or document.get("format") != FORMAT:
        raise ValueError("points of an unknown format")
    for key in list(keys)[:MAX_KEYS]:
        points.setdefault(key, KeyPoints()).update(keys[key])
