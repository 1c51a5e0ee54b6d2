"""Requests to the EC2 server, their responses, and faults that tests inject into them."""

from __future__ import annotations

import json
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

_SCOPE = re.compile(r"Credential=[^/]+/\d+/([^/]+)/([^/]+)/")
_STATUS = {
    "RequestLimitExceeded": 503, "Unavailable": 503, "InternalError": 500, "InsufficientInstanceCapacity": 500,
}  # fmt: skip
"""HTTP status of errors other than 400. botocore retries 500 and 503."""
_MESSAGES = {
    "InsufficientInstanceCapacity": "We currently do not have sufficient capacity in the Availability Zone you requested.",
    "RequestLimitExceeded": "Request limit exceeded.",
    "VcpuLimitExceeded": "You have requested more vCPU capacity than your current vCPU limit of 0 allows.",
    "Unsupported": "Your requested instance type is not supported in your requested Availability Zone.",
}


class ApiFailure(Exception):
    """A request that fails with this code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class ApiRequest:
    """A request, and the status of its response: 0 until it is sent."""

    service: str
    action: str
    params: dict[str, Any]
    """Fields as sent: ``InstanceId.1``, ``Placement.AvailabilityZone``; the JSON document for JSON services."""
    region: str
    time: float = field(default_factory=time.time)
    status: int = 0


@dataclass
class ApiAnswer:
    """A response."""

    status: int
    body: bytes
    headers: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class _Fault:
    action: str
    failure: ApiFailure
    count: float
    where: Mapping[str, str]


class FaultInjection:
    """Faults of the next requests."""

    def __init__(self) -> None:
        self._faults: list[_Fault] = []
        self._lost: dict[str, int] = {}
        self._delays: dict[str, float] = {}
        self._lag = 0.0
        self._hidden: dict[str, float] = {}

    def clear_faults(self) -> None:
        """Remove all faults that are still to come."""
        FaultInjection.__init__(self)

    def fail_next(
        self,
        action: str,
        code: str,
        message: str = "",
        count: float = 1,
        where: Mapping[str, str] | None = None,
    ) -> None:
        """Let the next ``count`` requests fail whose ``ApiRequest.params`` have the items of ``where``."""
        failure = ApiFailure(code, message or _MESSAGES.get(code, code))
        self._faults.append(_Fault(action, failure, count, where or {}))

    def lose_answer(self, action: str, count: int = 1) -> None:
        """Perform the next requests of an action, then cut the connection instead of responding."""
        self._lost[action] = count

    def delay(self, action: str, seconds: float) -> None:
        """Wait before each request of an action is performed."""
        self._delays[action] = seconds

    def lag_describe(self, seconds: float) -> None:
        """Hide instances launched from now on from Describe requests for so long."""
        self._lag = seconds

    def _await_delay(self, request: ApiRequest) -> None:
        time.sleep(self._delays.get(request.action, 0))

    def _raise_fault(self, request: ApiRequest) -> None:
        for fault in self._faults:
            matches = (
                fault.action == request.action and fault.where.items() <= request.params.items()
            )
            if matches and fault.count > 0:
                fault.count -= 1
                raise ApiFailure(fault.failure.code, str(fault.failure))

    def _cut_connection(self, request: ApiRequest) -> None:
        if self._lost.get(request.action, 0) > 0:
            self._lost[request.action] -= 1
            raise ConnectionResetError

    def _hide_new(self, request: ApiRequest, answer: ApiAnswer) -> ApiAnswer:
        """Remove hidden instances from a Describe response."""
        now = time.monotonic()
        hidden = {name for name, end in self._hidden.items() if end > now}
        if not hidden or answer.status != 200 or not request.action.startswith("Describe"):
            return answer
        for name, value in request.params.items():
            if name.startswith("InstanceId.") and value in hidden:
                message = f"The instance ID '{value}' does not exist"
                raise ApiFailure("InvalidInstanceID.NotFound", message)
        return ApiAnswer(200, _without(answer.body, hidden), answer.headers)


def _without(body: bytes, instances: set[str]) -> bytes:
    """Remove items about instances, and reservations that become empty, from a response."""
    root = ET.fromstring(body)
    ET.register_namespace("", root.tag.partition("}")[0].lstrip("{"))
    for parent in list(root.iter()):
        for item in list(parent):
            found = item.find("{*}instancesSet")
            inner = {
                each.findtext("{*}instanceId") for each in (found if found is not None else ())
            }
            if item.findtext("{*}instanceId") in instances or (inner and inner <= instances):
                parent.remove(item)
    return ET.tostring(root)


def parse_request(environ: Mapping[str, Any], body: bytes) -> ApiRequest:
    """Return the request of a WSGI environment; the action of other protocols than EC2's and JSON is the path."""
    scope = _SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
    region, service = scope.groups() if scope else ("us-east-1", "")
    target = environ.get("HTTP_X_AMZ_TARGET")
    if target:
        return ApiRequest(service, target.rpartition(".")[2], json.loads(body or b"{}"), region)
    params = dict(parse_qsl(body.decode("latin-1"))) if service == "ec2" else {}
    return ApiRequest(service, params.get("Action", environ["PATH_INFO"]), params, region)


def failed_answer(service: str, error: ApiFailure) -> ApiAnswer:
    """Return the response of a failed request."""
    status = _STATUS.get(error.code, 400)
    if service != "ec2":
        document = json.dumps({"__type": error.code, "message": str(error)})
        return ApiAnswer(status, document.encode(), [("Content-Type", "application/json")])
    text = f"<Code>{escape(error.code)}</Code><Message>{escape(str(error))}</Message>"
    body = f"<Response><Errors><Error>{text}</Error></Errors><RequestID>0</RequestID></Response>"
    return ApiAnswer(status, body.encode(), [("Content-Type", "text/xml")])
