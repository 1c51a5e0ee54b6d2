"""Read the platform's notices that it takes a machine back."""

from __future__ import annotations

import calendar
import http.client
import json
import os
import time
from typing import Dict, Optional, Tuple
from urllib.parse import urlsplit

from trainctl.base.protocol.idle_shutdown import MachineNotices, NoticeSource

_IMDS = "http://169.254.169.254"
_IMDS_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
_VALID_SECONDS = "21600"
_SECONDS = 1.0
_UNAUTHORIZED = 401


class NoticeReader:
    """Notices of the EC2 instance metadata service, version 2 (kind ``imds``); other kinds have none."""

    def __init__(self, source: NoticeSource) -> None:
        self._kind = source["kind"]
        url = source.get("url") or os.environ.get(_IMDS_VARIABLE) or _IMDS
        self._address = urlsplit(url)
        self._token = ""

    def read(self) -> MachineNotices:
        """Return the notices; OSError or ValueError if the service doesn't answer properly."""
        if self._kind != "imds":
            return {"taken_back": None, "at_risk": None}
        return {
            "taken_back": _time(self._get("spot/instance-action"), "time"),
            "at_risk": _time(self._get("events/recommendations/rebalance"), "noticeTime"),
        }

    def _get(self, path: str) -> Optional[str]:
        for _ in range(2):
            if not self._token:
                header = {"X-aws-ec2-metadata-token-ttl-seconds": _VALID_SECONDS}
                status, self._token = self._request("PUT", "/latest/api/token", header)
                if status != http.client.OK:
                    self._token = ""
                    raise OSError(f"the metadata service responded with {status}")
            header = {"X-aws-ec2-metadata-token": self._token}
            status, text = self._request("GET", f"/latest/meta-data/{path}", header)
            if status == http.client.OK:
                return text
            if status != _UNAUTHORIZED:
                break
            self._token = ""
        return None

    def _request(self, method: str, path: str, headers: Dict[str, str]) -> Tuple[int, str]:
        connection = http.client.HTTPConnection(
            self._address.hostname or "", self._address.port, timeout=_SECONDS
        )
        try:
            connection.request(method, self._address.path.rstrip("/") + path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read(65536).decode("latin-1")
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()


def _time(text: Optional[str], key: str) -> Optional[float]:
    """Unix seconds of a member like ``2026-09-18T08:22:00Z``."""
    if text is None:
        return None
    return float(calendar.timegm(time.strptime(str(json.loads(text)[key]), "%Y-%m-%dT%H:%M:%SZ")))
