"""What two sides tell each other, everything once and in order, over connections that may break in between."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

Value = Dict[str, Any]


class Talk:
    """One side of it. What was said is kept until the other side says that it heard it."""

    def __init__(self) -> None:
        self._said = 0
        self.heard = 0
        """How much of what the other side said has arrived here."""
        self._unheard: List[Tuple[int, Value]] = []

    @property
    def all_heard(self) -> bool:
        """Whether the other side has everything."""
        return not self._unheard

    def say(self, value: Value) -> Value:
        """The line that tells it."""
        self._said += 1
        self._unheard.append((self._said, value))
        return self._line(self._said, value)

    def pulse(self) -> Value:
        """The line that says only that somebody is here, and what he has heard."""
        return {"heard": self.heard}

    def again(self, heard: int) -> List[Value]:
        """The lines for a new connection, whose other side has heard so much."""
        self._drop(heard)
        return [self._line(number, value) for number, value in self._unheard]

    def take(self, line: Value) -> Optional[Value]:
        """What a line tells that is new."""
        self._drop(int(line.get("heard", 0)))
        if line.get("number") != self.heard + 1:
            return None  # a pulse, or told before
        self.heard += 1
        value = line.get("value")
        return value if isinstance(value, dict) else None

    def _line(self, number: int, value: Value) -> Value:
        return {"number": number, "value": value, "heard": self.heard}

    def _drop(self, heard: int) -> None:
        self._unheard = [one for one in self._unheard if one[0] > heard]
