"""Where this host may be reached: at any port that is free, or at those of a range that a firewall lets through."""

from __future__ import annotations

import errno
import os
import random
import re
from typing import Any, Callable, Optional, TypeVar

from trainctl.base.failure import Failure

T = TypeVar("T")
_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")


def parse_port_range(text: Any) -> Optional[range]:
    """``29000-29100`` as the ports that it means, both ends among them; None, any port, for no text. Failure for what is no range."""
    if not text:
        return None
    found = _RANGE.fullmatch(str(text))
    ports = range(int(found[1]), int(found[2]) + 1) if found else range(0)
    if not ports or ports[0] < 1 or ports[-1] > 65535:
        raise Failure("request", f"{text!r} is no range of ports")
    return ports


def bind_first_free(ports: range, bind: Callable[[int], T]) -> T:
    """What ``bind`` makes at the first port that is free. Two that choose at once choose differently. Failure if none is free."""
    for port in random.sample(ports, len(ports)):
        try:
            return bind(port)
        except OSError as error:  # noqa: PERF203
            if error.errno != errno.EADDRINUSE:
                raise
    raise Failure(
        "ports",
        f"none of the ports {ports[0]}-{ports[-1]} is free on {os.uname().nodename}",
        "End what listens there, or give the host more ports.",
    )
