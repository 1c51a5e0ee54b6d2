"""Calls of AWS: clients of one region, retries, errors in trainctl's form; instances by their tags.

boto3 is loaded by the first call.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trainctl.errors import NodeError, NodeUnreachable

LINEAGE, CLUSTER, NODE, KEY = (
    "trainctl:lineage",
    "trainctl:cluster",
    "trainctl:node",
    "trainctl:key",
)
HOST_KEY, PRICE = "trainctl:host-key", "trainctl:price"
NEXT_HOST_KEY = "trainctl:next-host-key"
LIVE = ("pending", "running", "stopping", "stopped")
"""States of instances that exist."""
ANY = (*LIVE, "shutting-down", "terminated")

Instance = dict[str, Any]
"""An instance as DescribeInstances returns it."""
_THROTTLED = frozenset(
    [
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "RequestThrottled",
        "TooManyRequestsException",
        "EC2ThrottledException",
        "Unavailable",
        "ServiceUnavailable",
        "InternalError",
        "InternalFailure",
    ]
)
_DENIED = frozenset(
    [
        "AuthFailure",
        "UnauthorizedOperation",
        "AccessDenied",
        "AccessDeniedException",
        "InvalidClientTokenId",
        "ExpiredToken",
        "ExpiredTokenException",
        "UnrecognizedClientException",
        "RequestExpired",
        "OptInRequired",
        "SignatureDoesNotMatch",
    ]
)
_RETRY_SECONDS = 120.0
_UNANSWERED = 3
"""How often to call a service that doesn't respond."""
_LONGEST_PAUSE = 20.0
_PRICE_LIST_REGION = "us-east-1"
_CREDENTIAL_ADVICE = (
    "Set the credentials that boto3 uses: AWS_PROFILE, AWS_ACCESS_KEY_ID, aws sso login, or a role."
)


class AwsError(NodeError):
    """A request that AWS refused; ``reason`` is its error code."""

    def __init__(self, summary: str, detail: str, reason: str, *, code: str | None = None) -> None:
        super().__init__(summary, detail, code=code)
        self.reason = reason


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
        self._retry_seconds = retry_seconds
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}
        self._session: Any = None

    def ec2(self, action: str, **parameters: Any) -> Any:
        """Call EC2; ``action`` is a method of boto3's client."""
        return self.call("ec2", action, **parameters)

    def ec2_items(self, action: str, key: str, **parameters: Any) -> list[Any]:
        """Call a paginated action of EC2; return the items of all pages."""
        items: list[Any] = []
        while True:
            page = self.ec2(action, **parameters)
            items += page.get(key, [])
            if not page.get("NextToken"):
                return items
            parameters["NextToken"] = page["NextToken"]

    def call(self, service: str, action: str, **parameters: Any) -> Any:
        """Call a service, again with back-off while it limits requests; AwsError or NodeUnreachable."""
        end, pause, unanswered = time.monotonic() + self._retry_seconds, 0.5, 0
        while True:
            try:
                return self._call_once(service, action, parameters)
            except AwsError as error:
                if error.reason not in _THROTTLED or time.monotonic() + pause > end:
                    raise
            except NodeUnreachable:
                unanswered += 1
                if unanswered == _UNANSWERED or time.monotonic() + pause > end:
                    raise
            time.sleep(pause * (0.5 + random.random()))  # noqa: S311 - jitter
            pause = min(2 * pause, _LONGEST_PAUSE)

    def credentials(self) -> str:
        """Return where boto3 found credentials, such as ``shared-credentials-file``; empty without any."""
        with self._lock:
            found = self._open_session().get_credentials()
        return str(found.method) if found is not None else ""

    def close(self) -> None:
        """Close the clients; the next call opens them again."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _call_once(self, service: str, action: str, parameters: dict[str, Any]) -> Any:
        method: Callable[..., Any] = getattr(self._client(service), action)
        from botocore import exceptions  # loaded with the client

        try:
            return method(**parameters)
        except exceptions.ClientError as error:
            raise _refused(action, error.response.get("Error", {})) from None
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
            raise _denied(f"no AWS credentials: {error}", "NoCredentials") from None
        except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
            raise NodeUnreachable(
                f"AWS is unreachable: {error}", code="cloud-unreachable"
            ) from None
        except exceptions.BotoCoreError as error:
            raise _denied(f"cannot call AWS: {error}", "BotoCoreError") from None

    def _client(self, service: str) -> Any:
        with self._lock:
            if service not in self._clients:
                session = self._open_session()
                from botocore.config import Config

                # RunInstances reports missing capacity with status 500, which botocore would retry.
                config = Config(
                    connect_timeout=5,
                    read_timeout=min(30.0, 2 * self._retry_seconds),
                    retries={"total_max_attempts": 1},
                )
                region = _PRICE_LIST_REGION if service == "pricing" else self.region
                self._clients[service] = session.client(service, region_name=region, config=config)
            return self._clients[service]

    def _open_session(self) -> Any:
        if self._session is None:
            try:
                import boto3  # half a second, and rarely needed
                from botocore.exceptions import BotoCoreError
            except ImportError:
                raise NodeError(
                    "boto3 not found",
                    "Install it: pip install 'trainctl[aws]'.",
                    code="cloud-credentials",
                ) from None
            try:
                self._session = boto3.session.Session()
            except BotoCoreError as error:  # such as an unknown profile
                raise _denied(f"cannot read the AWS configuration: {error}", "Profile") from None
        return self._session


def _refused(action: str, error: dict[str, Any]) -> AwsError:
    reason, message = str(error.get("Code", "")), str(error.get("Message", "")).strip()
    if reason in _DENIED:
        return _denied(f"AWS denied {action}: {reason}", reason, message)
    return AwsError(f"{action} failed: {reason}", message, reason)


def _denied(summary: str, reason: str, message: str = "") -> AwsError:
    detail = f"{message}\n{_CREDENTIAL_ADVICE}".lstrip()
    return AwsError(summary, detail, reason, code="cloud-credentials")


def tag_list(values: dict[str, str]) -> list[dict[str, str]]:
    """Return tags in AWS's form."""
    return [{"Key": key, "Value": value} for key, value in values.items()]


def tags_of(resource: Instance) -> dict[str, str]:
    """Return the tags of an instance or another resource."""
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags", ())}


def state_of(instance: Instance) -> str:
    """Return the state, such as ``running``."""
    return str(instance["State"]["Name"])


def tag_filters(**tags: str) -> list[dict[str, Any]]:
    """Return filters for resources with these values of ``trainctl:NAME``."""
    return [{"Name": f"tag:trainctl:{name}", "Values": [value]} for name, value in tags.items()]


def find_instances(
    account: AwsAccount, filters: Sequence[dict[str, Any]], states: Sequence[str] = LIVE
) -> list[Instance]:
    """Return the instances that match, the oldest first."""
    by_state = {"Name": "instance-state-name", "Values": list(states)}
    filters = [*filters, by_state]
    pages = account.ec2_items("describe_instances", "Reservations", Filters=filters)
    found = [instance for page in pages for instance in page["Instances"]]
    return sorted(found, key=lambda instance: (instance["LaunchTime"], instance["InstanceId"]))


def id_filters(instance_id: str) -> list[dict[str, Any]]:
    """Return filters for one instance; unlike a request by ID, it may be missing."""
    return [{"Name": "instance-id", "Values": [instance_id]}]
