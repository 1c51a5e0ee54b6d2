"""Calls of AWS: clients of one region, retries, errors in trainctl's form; instances and tags.

boto3 is loaded by the first call.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from trainctl.base.retry import RetryPolicy
from trainctl.errors import NodeError, NodeUnreachable, SourceUnreachable

T = TypeVar("T")
LIVE = ("pending", "running", "stopping", "stopped")
"""States of instances that exist."""
NOT_ENDED = (*LIVE, "shutting-down")
ANY = (*NOT_ENDED, "terminated")

Instance = dict[str, Any]
"""An instance as DescribeInstances returns it."""
Filters = Mapping[str, Sequence[str]]
"""Values by the name of EC2's filter."""
_PREFIX = "trainctl:"
_TRANSIENT = (
    r"(RequestLimitExceeded|(Request|EC2)?Thrott(led|ling)|TooManyRequests)(Exception)?"
    r"|(Service)?Unavailable|Internal(Error|Failure)"
    r"|VolumeInUse|IncorrectState|DependencyViolation|InvalidPlacementGroup\.InUse"
)
"""Limits, failures of AWS, and users of a resource: a terminated machine is one for a while."""
_DENIED = (
    r"AuthFailure|RequestExpired|OptInRequired|SignatureDoesNotMatch|InvalidClientTokenId"
    r"|(AccessDenied|UnauthorizedOperation|ExpiredToken|UnrecognizedClient)(Exception)?"
)
_RETRY_SECONDS = 120.0
_PRICE_LIST_REGION = "us-east-1"
_CREDENTIAL_ADVICE = (
    "Set the credentials that boto3 uses: AWS_PROFILE, AWS_ACCESS_KEY_ID, aws sso login, or a role."
)


class AwsError(NodeError):
    """A request that AWS refused; ``reason`` is its error code."""

    def __init__(self, summary: str, detail: str, reason: str, *, code: str | None = None) -> None:
        super().__init__(summary, detail, code=code)
        self.reason = reason


class AwsTransientError(AwsError):
    """A request that AWS refused for the moment."""

    retryable = True


@contextmanager
def ignore_refusal(*reasons: str) -> Iterator[None]:
    """Ignore refusals with these error codes."""
    try:
        yield
    except AwsError as error:
        if error.reason not in reasons:
            raise


class AwsAccount:
    """The user's account in one region; thread-safe."""

    def __init__(self, region: str, *, retry_seconds: float = _RETRY_SECONDS) -> None:
        self.region = region
        self._retry = RetryPolicy(
            attempts=100, base=0.5, longest=20.0, unanswered=3, within=retry_seconds
        )
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}
        self._session: Any = None

    def ec2(self, action: str, **parameters: Any) -> Any:
        """Call EC2; ``action`` is a method of boto3's client."""
        return self.call("ec2", action, **parameters)

    def describe(self, kind: str, filters: Filters, key: str = "", **parameters: Any) -> list[Any]:
        """Return the items of all pages of EC2's ``describe_KIND``; ``key`` is their name, by default the kind."""
        parameters["Filters"] = [{"Name": k, "Values": [*v]} for k, v in filters.items()]
        items: list[Any] = []
        while True:
            page = self.ec2(f"describe_{kind}", **parameters)
            items += page.get(key or kind.title().replace("_", ""), [])
            if not page.get("NextToken"):
                return items
            parameters["NextToken"] = page["NextToken"]

    def instances(self, filters: Filters, states: Sequence[str] = LIVE) -> list[Instance]:
        """Return the instances that match, the oldest first."""
        filters = {**filters, "instance-state-name": states}
        pages = self.describe("instances", filters, "Reservations")
        found = [instance for page in pages for instance in page["Instances"]]
        return sorted(found, key=lambda instance: (instance["LaunchTime"], instance["InstanceId"]))

    def call(self, service: str, action: str, **parameters: Any) -> Any:
        """Call a service, again with back-off while it limits requests; AwsError or NodeUnreachable."""
        try:
            return self._retry.run(
                lambda: self._call_once(service, action, parameters), threading.Event()
            )
        except SourceUnreachable as error:
            raise NodeUnreachable(error.summary, error.detail, code="cloud-unreachable") from None

    def credentials(self) -> str:
        """Return where boto3 found credentials, such as ``shared-credentials-file``; empty without any."""
        with self._lock:
            found = self._session and self._session.get_credentials()
        return str(found.method) if found else ""

    def close(self) -> None:
        """Close the clients; the next call opens them again."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _call_once(self, service: str, action: str, parameters: dict[str, Any]) -> Any:
        try:
            from boto3.session import Session  # half a second, and rarely needed
            from botocore import exceptions
        except ImportError:
            raise NodeError(
                "boto3 not found",
                "Install it: pip install 'trainctl[aws]'.",
                code="cloud-credentials",
            ) from None
        try:
            with self._lock:
                self._session = self._session or Session()
                if service not in self._clients:
                    self._clients[service] = self._open_client(service)
                method: Callable[..., Any] = getattr(self._clients[service], action)
            return method(**parameters)
        except exceptions.ClientError as error:
            raise _refused(action, error.response.get("Error", {})) from None
        except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
            raise SourceUnreachable(f"AWS is unreachable: {error}") from None
        except exceptions.BotoCoreError as error:  # such as no credentials, or an unknown profile
            raise NodeError(
                f"cannot call AWS: {error}", _CREDENTIAL_ADVICE, code="cloud-credentials"
            ) from None

    def _open_client(self, service: str) -> Any:
        from botocore.config import Config

        # RunInstances reports missing capacity with status 500, which botocore would retry.
        config = Config(
            connect_timeout=5,
            read_timeout=min(30.0, 2 * self._retry.within),
            retries={"total_max_attempts": 1},
        )
        region = _PRICE_LIST_REGION if service == "pricing" else self.region
        return self._session.client(service, region_name=region, config=config)


def _refused(action: str, error: dict[str, Any]) -> AwsError:
    reason, message = str(error.get("Code", "")), str(error.get("Message", "")).strip()
    if re.fullmatch(_DENIED, reason):
        detail = f"{message}\n{_CREDENTIAL_ADVICE}".lstrip()
        summary = f"AWS denied {action}: {reason}"
        return AwsError(summary, detail, reason, code="cloud-credentials")
    kind = AwsTransientError if re.fullmatch(_TRANSIENT, reason) else AwsError
    return kind(f"{action} failed: {reason}", message, reason)


def tag_list(values: Mapping[str, str], prefix: str = _PREFIX) -> list[dict[str, str]]:
    """Return tags in AWS's form."""
    return [{"Key": f"{prefix}{name}", "Value": value} for name, value in values.items()]


def tags_of(instance: Instance) -> dict[str, str]:
    """Return trainctl's tags by their names without the prefix."""
    return {
        tag["Key"].removeprefix(_PREFIX): tag["Value"]
        for tag in instance.get("Tags", ())
        if tag["Key"].startswith(_PREFIX)
    }


def tagged(**tags: str) -> dict[str, list[str]]:
    """Return filters for resources with these values of ``trainctl:NAME``."""
    return {f"tag:{_PREFIX}{name}": [value] for name, value in tags.items()}


def poll(look: Callable[[], T], seconds: float) -> T:
    """Return the first true value of ``look``, or the last value when the time is over."""
    end, pause = time.monotonic() + seconds, 0.25
    while not (value := look()) and time.monotonic() < end:
        time.sleep(pause)
        pause = min(2 * pause, 5.0)
    return value
