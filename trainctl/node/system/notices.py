"""Read the platform's notices that it takes a machine back."""

from __future__ import annotations

import calendar
import contextlib
import http.client
import json
import os
import time
from typing import Dict, Optional
from urllib.parse import urlsplit

from trainctl.base.protocol.idle_shutdown import MachineNotices, NoticeSource

_IMDS = "http://169.254.169.254"
_IMDS_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
_VALID_SECONDS = "21600"
_SECONDS = 1.0


class NoticeReader:
    """Notices of the EC2 instance metadata service, version 2 (kind ``imds``); other kinds have none."""

    def __init__(self, source: NoticeSource) -> None:
        self._kind = source["kind"]
        url = source.get("url") or os.environ.get(_IMDS_VARIABLE) or _IMDS
        self._address = urlsplit(url)
        self._token = ""

    def read(self) -> MachineNotices:
        """Return the notices; OSError, HTTPException or ValueError without a proper response.

        Then a new token is used the next time.
        """
        if self._kind != "imds":
            return {"taken_back": None, "at_risk": None}
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": _VALID_SECONDS}
        self._token = self._token or self._request("PUT", "/latest/api/token", ttl) or ""
        return {
            "taken_back": _time(self._get("spot/instance-action"), "time"),
            "at_risk": _time(self._get("events/recommendations/rebalance"), "noticeTime"),
        }

    def _get(self, path: str) -> Optional[str]:
        header = {"X-aws-ec2-metadata-token": self._token}
        return self._request("GET", f"/latest/meta-data/{path}", header)

    def _request(self, method: str, path: str, headers: Dict[str, str]) -> Optional[str]:
        """Return the body; None if there is no such path."""
        connection = http.client.HTTPConnection(
            self._address.hostname or "", self._address.port, timeout=_SECONDS
        )
        with contextlib.closing(connection):
            connection.request(method, self._address.path.rstrip("/") + path, headers=headers)
            response = connection.getresponse()
            if response.status == http.client.OK:
                return response.read(65536).decode("latin-1")
            if response.status == http.client.NOT_FOUND:
                return None
            self._token = ""
            raise OSError(f"the metadata service responded with {response.status}")


def _time(text: Optional[str], key: str) -> Optional[float]:
    """Unix seconds of a member like ``2026-09-18T08:22:00Z``."""
    if text is None:
        return None
    return float(calendar.timegm(time.strptime(str(json.loads(text)[key]), "%Y-%m-%dT%H:%M:%SZ")))
