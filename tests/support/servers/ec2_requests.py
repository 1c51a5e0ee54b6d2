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
_STATUS = {"RequestLimitExceeded": 503, "InsufficientInstanceCapacity": 500}
"""HTTP status of errors other than 400. botocore retries 500 and 503."""


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
    code: str
    count: float
    where: Mapping[str, str]


class FaultInjection:
    """Faults of the next requests."""

    def __init__(self) -> None:
        self._faults: list[_Fault] = []
        self._lost: set[str] = set()
        self._delays: dict[str, float] = {}
        self._lag = 0.0
        self._end_reason = ""
        self._hidden: dict[str, float] = {}

    def fail_next(
        self, action: str, code: str, count: float = 1, where: Mapping[str, str] | None = None
    ) -> None:
        """Let the next ``count`` requests fail whose ``ApiRequest.params`` have the items of ``where``."""
        self._faults.append(_Fault(action, code, count, where or {}))

    def lose_answer(self, action: str) -> None:
        """Perform the next request of an action, then cut the connection instead of responding."""
        self._lost.add(action)

    def delay(self, action: str, seconds: float) -> None:
        """Wait before each request of an action is performed."""
        self._delays[action] = seconds

    def lag_describe(self, seconds: float) -> None:
        """Hide instances launched from now on from Describe requests for so long."""
        self._lag = seconds

    def end_next(self, reason: str) -> None:
        """Terminate the next instance for this reason as soon as it was launched."""
        self._end_reason = reason

    def _await_delay(self, request: ApiRequest) -> None:
        time.sleep(self._delays.get(request.action, 0))

    def _raise_fault(self, request: ApiRequest) -> None:
        for fault in self._faults:
            matches = (
                fault.action == request.action and fault.where.items() <= request.params.items()
            )
            if matches and fault.count > 0:
                fault.count -= 1
                raise ApiFailure(fault.code, fault.code)

    def _cut_connection(self, request: ApiRequest) -> None:
        if request.action in self._lost:
            self._lost.remove(request.action)
            raise ConnectionResetError

    def _hide_new(self, request: ApiRequest, answer: ApiAnswer) -> ApiAnswer:
        """Remove hidden instances from the response to DescribeInstances."""
        now = time.monotonic()
        hidden = {name for name, end in self._hidden.items() if end > now}
        if not hidden or answer.status != 200 or request.action != "DescribeInstances":
            return answer
        for name, value in request.params.items():
            if name.startswith("InstanceId.") and value in hidden:
                message = f"The instance ID '{value}' does not exist"
                raise ApiFailure("InvalidInstanceID.NotFound", message)
        root = ET.fromstring(answer.body)
        ET.register_namespace("", root.tag.partition("}")[0].lstrip("{"))
        for instances in root.iterfind(".//{*}instancesSet"):
            for instance in list(instances):
                if instance.findtext("{*}instanceId") in hidden:
                    instances.remove(instance)
        return ApiAnswer(200, ET.tostring(root), answer.headers)


def parse_request(environ: Mapping[str, Any], body: bytes) -> ApiRequest:
    """Return the request of a WSGI environment; the action of other protocols than EC2's and JSON is the path."""
    scope = _SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
    region, service = scope.groups() if scope else ("us-east-1", "")
    target = environ.get("HTTP_X_AMZ_TARGET")
    if target:
        return ApiRequest(service, target.rpartition(".")[2], json.loads(body or b"{}"), region)
    params = dict(parse_qsl(body.decode("latin-1"))) if service == "ec2" else {}
    return ApiRequest(service, params.get("Action", environ["PATH_INFO"]), params, region)


def failed_answer(error: ApiFailure) -> ApiAnswer:
    """Return the response of a failed request to EC2."""
    text = f"<Code>{escape(error.code)}</Code><Message>{escape(str(error))}</Message>"
    body = f"<Response><Errors><Error>{text}</Error></Errors><RequestID>0</RequestID></Response>"
    return ApiAnswer(_STATUS.get(error.code, 400), body.encode(), [("Content-Type", "text/xml")])
