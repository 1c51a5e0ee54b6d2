"""Who called the mirror program: what it asks them while it works, and errors as they are on their side."""

from __future__ import annotations

from typing import Any, Mapping

from trainctl.base.protocol.asking import Asked, Asking, Gone
from trainctl.base.protocol.errors import error_from_json
from trainctl.errors import Interrupted


class Caller(Asking):
    """See Asking."""

    def wait(self, asked: Asked) -> Mapping[str, Any]:
        """The answer to a question. The caller's error where it can't tell; Interrupted when it has gone."""
        try:
            answer = super().wait(asked)
        except Gone:
            raise Interrupted(
                "the command that mirrored has ended", "What arrived is kept."
            ) from None
        if "error" in answer:
            raise error_from_json(answer["error"])
        return answer
