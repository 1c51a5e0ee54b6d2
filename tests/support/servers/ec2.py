"""EC2 on this machine: moto behind a wrapper that boots a real machine for each instance and that injects faults.

Private and public addresses are in 127.0.0.0/8. sshd listens on port 22 of the private address, or on ``ec2.ssh_port`` if this
machine has an sshd on all addresses. There is one region, us-east-1.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import boto3
from botocore.config import Config
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.support.machines.ec2_instance import Ec2Launch, Ec2Machine
from tests.support.servers import ec2_backend
from tests.support.servers.ec2_answers import AccountData
from tests.support.servers.ec2_requests import (
    ApiAnswer,
    ApiFailure,
    ApiRequest,
    FaultInjection,
    failed_answer,
    parse_request,
)

REGION = "us-east-1"


class Ec2Server(FaultInjection):
    """The endpoint of all AWS services, and the machines of its instances."""

    def __init__(self, place: Path, network: int) -> None:
        ec2_backend.confine()
        self.place = place
        self.url = ""
        self.requests: list[ApiRequest] = []
        self.machines: dict[str, Ec2Machine] = {}
        """Machines of running and stopped instances by instance ID."""
        self.ssh_port = ec2_backend.ssh_port(f"127.{network}.0.4")
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.RLock()
        self._backend = ec2_backend.RegionBackend(REGION, network)
        self._clear()

    def _clear(self) -> None:
        FaultInjection.__init__(self)
        self.data = AccountData(self._backend.default_image())
        self._addresses: list[str] = []
        self._launches: dict[str, tuple[dict[str, Any], ApiAnswer, list[Any]]] = {}
        self._timers: list[threading.Timer] = []
        self.requests.clear()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make a program use this server."""
        return {
            "AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "not-a-real-key",
            "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "NO_PROXY": "127.0.0.1",
        }  # fmt: skip

    @functools.cache  # noqa: B019
    def client(self, service: str = "ec2") -> Any:
        """Return a boto3 client without retries."""
        session = boto3.session.Session("AKIAEXAMPLE", "not-a-real-key", region_name=REGION)
        config = Config(retries={"total_max_attempts": 1}, proxies={})
        return session.client(service, endpoint_url=self.url, config=config)

    def calls(self, action: str) -> list[ApiRequest]:
        return [request for request in list(self.requests) if request.action == action]

    def reuse_address(self, address: str) -> None:
        """Give the private address of a terminated instance to the next instance."""
        self._addresses.append(address)

    def interrupt(self, instance_id: str, seconds: float) -> None:
        """Send the notice of a spot interruption, and terminate the instance after ``seconds``."""
        self.machines[instance_id].metadata.notify_interruption(seconds)
        timer = threading.Timer(seconds, self._end, (instance_id, "Server.SpotInstanceTermination"))
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def reset(self) -> None:
        """Delete all instances, resources, faults and recorded requests."""
        with self._lock:
            for timer in self._timers:
                timer.cancel()
            for machine in self.machines.values():
                machine.delete()
            self.machines.clear()
            self._backend.reset()
            self._clear()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        request = parse_request(environ, body)
        self.requests.append(request)
        self._await_delay(request)
        try:
            answer = self._answer(environ, request, body)
        except ApiFailure as error:
            answer = failed_answer(error)
        request.status = answer.status
        self._cut_connection(request)
        headers = [each for each in answer.headers if each[0].lower() != "content-length"]
        start(f"{answer.status} -", [*headers, ("Content-Length", str(len(answer.body)))])
        return [answer.body]

    def _answer(self, environ: dict[str, Any], request: ApiRequest, body: bytes) -> ApiAnswer:
        with self._lock:
            self._raise_fault(request)
            answer = self.data.answer(request)
            if answer is not None:
                return answer
            if request.action == "RunInstances":
                return self._run(environ, request)
            answer = self._forward(environ, body)
            if answer.status == 200:
                self._follow(request)
            return self._hide_new(request, answer)

    def _forward(self, environ: dict[str, Any], body: bytes) -> ApiAnswer:
        answer = ApiAnswer(0, b"")

        def start(status: str, headers: list[tuple[str, str]], *_: object) -> None:
            answer.status, answer.headers = int(status.split()[0]), headers

        changed = {**environ, "wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        answer.body = b"".join(self._moto(changed, start))
        return answer

    def _run(self, environ: dict[str, Any], request: ApiRequest) -> ApiAnswer:
        token = request.params["ClientToken"]
        if token in self._launches:
            params, answer, instances = self._launches[token]
            if any(instance.state == "terminated" for instance in instances):
                raise ApiFailure("IdempotentInstanceTerminated", "its instance has ended")
            if params != request.params:
                raise ApiFailure("IdempotentParameterMismatch", "the token has other parameters")
            return answer
        address = self._addresses.pop(0) if self._addresses else None
        params = self._backend.placed(request.params, address)
        answer = self._forward(environ, urlencode(params).encode())
        if answer.status == 200:
            names = re.findall(rb"<instanceId>(i-[0-9a-f]+)<", answer.body)
            instances = [self._backend.moto.get_instance(name.decode()) for name in names]
            self._launches[token] = (request.params, answer, instances)
            for instance in instances:
                self._launch(instance)
        return answer

    def _launch(self, instance: Any) -> None:
        launch = Ec2Launch(
            instance.private_ip,
            self._backend.user_data(instance),
            ec2_backend.gpu_count(instance.instance_type),
            self.ssh_port,
        )
        assert launch.address.startswith("127."), f"{launch.address} is not a loopback address"
        machine = Ec2Machine(
            self.place / instance.id,
            launch,
            lambda: self._end(instance.id, "Client.InstanceInitiatedShutdown"),
        )
        self.machines[instance.id] = machine
        self._hidden[instance.id] = time.monotonic() + self._lag
        machine.boot()
        if self._end_reason:
            self._end(instance.id, self._end_reason)
            self._end_reason = ""

    def _follow(self, request: ApiRequest) -> None:
        """Do to machines what a request did to their instances."""
        for name, value in request.params.items():
            machine = self.machines.get(value) if name.startswith("InstanceId.") else None
            if machine is None:
                continue
            if request.action == "TerminateInstances":
                self.machines.pop(value).delete()
            if request.action == "RebootInstances":
                machine.kill()
                machine.boot()

    def _end(self, instance_id: str, reason: str) -> None:
        """Terminate an instance other than by a request; trainctl's all end when they power off."""
        with self._lock:
            if instance_id not in self.machines:
                return
            instance = self._backend.moto.get_instance(instance_id)
            instance.terminate()
            self.machines.pop(instance_id).delete()
            instance.state_reason.code = reason
            instance.state_reason.message = f"{reason}: Instance ended"


class _QuietHandler(WSGIRequestHandler):
    def connection_dropped(self, error: BaseException, environ: object = None) -> None:
        self.close_connection = True

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002
        if type == "error":
            super().log(type, message, *args)


@contextmanager
def serve_ec2(place: Path) -> Iterator[Ec2Server]:
    """Run a server and its machines while the context lasts."""
    with ExitStack() as stack:
        ec2 = Ec2Server(place, stack.enter_context(ec2_backend.claim_network()))
        server = make_server("127.0.0.1", 0, ec2, threaded=True, request_handler=_QuietHandler)
        thread = threading.Thread(target=lambda: server.serve_forever(0.05), daemon=True)
        thread.start()
        ec2.url = f"http://127.0.0.1:{server.server_port}"
        try:
            # moto's first answers take seconds, and a plan waits for AWS for six
            ec2.client().describe_instance_type_offerings(
                Filters=[{"Name": "instance-type", "Values": ["g5.xlarge"]}]
            )
            ec2.client("sts").get_caller_identity()
            ec2.requests.clear()
            yield ec2
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
            ec2.reset()
