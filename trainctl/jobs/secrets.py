"""Values of declared secrets: read when used, registered for redaction at once, handed out for where they may go."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from trainctl.base.protocol.code import RegistryLogin
from trainctl.desired.values import SecretSpec
from trainctl.errors import TrainctlError
from trainctl.jobs.bucket_credentials import (
    CredentialCache,
    bind_and_mask,
    declared_bucket_credential,
    default_bucket_credential,
)
from trainctl.jobs.destinations import registry_destination, source_destination
from trainctl.jobs.registry import registry_login
from trainctl.jobs.secret_errors import missing_error
from trainctl.jobs.secret_sources import SecretSources, check_allowed, is_local, read, secret_path
from trainctl.manifest.credentials import is_secret_key
from trainctl.model.redaction import Redactor
from trainctl.model.single_flight import SingleFlight
from trainctl.model.source_uri import parse_source
from trainctl.model.specs.job_spec import ImageSpec
from trainctl.model.specs.resource import WeightsSpec
from trainctl.model.trust import SecretDestination, Trust, default_trust
from trainctl.objects.location import SCHEMES
from trainctl.plugin_api.sources import SourceCredential

MIN_MASKED_LENGTH = 8
"""Characters below which a value can't be masked without masking ordinary words."""


class SecretResolver:
    """Hands out the values that a manifest's ``secrets`` refer to; safe to use from many threads.

    ``trust`` is asked for when something needs it, and says what may be read and who may have it.
    """

    def __init__(
        self,
        specs: Mapping[str, SecretSpec],
        directory: Path,
        environ: Mapping[str, str],
        redactor: Redactor,
        trust: Callable[[], Trust] = default_trust,
    ) -> None:
        self._specs = specs
        self._environ = environ
        self._redactor = redactor
        self._trust = trust
        self._around = SecretSources(directory, environ, trust, redactor.register)
        self._fetched = SingleFlight[str](forget_errors=True)
        self._asked = CredentialCache()

    def register(self, value: str) -> str:
        """Mask a credential that this process made, from its birth on."""
        return self._redactor.register(value)

    def value(self, name: str) -> str:
        """The value of a declared secret; TrainctlError says where it was looked for, Forbidden what trust lacks."""
        spec = self._specs.get(name)
        if spec is None:
            raise TrainctlError(
                f"secret {name!r} is not declared",
                f"Add it under `secrets:`, as `{name}: {{from: env}}`.",
                code="undeclared-name",
            )
        return self.accept(spec, self._read(spec))

    def accept(self, spec: SecretSpec, value: str) -> str:
        """A value that was read or given for a secret, masked from now on; TrainctlError where it can't be used."""
        name = spec.name
        if "\0" in value:
            raise TrainctlError(
                f"secret {name!r} contains a NUL character",
                "Encode the value, for example with base64.",
                code="unusable-secret",
            )
        if not value.strip():
            raise missing_error(
                spec,
                "the value is empty",
                "Store a value, or use another source.",
            )
        if not spec.redact:
            return value
        if len(value.strip()) < MIN_MASKED_LENGTH:
            raise TrainctlError(
                f"secret {name!r} has fewer than {MIN_MASKED_LENGTH} characters",
                "Short values can't be redacted in output. Use a longer value, or declare `redact: false`.",
                code="short-secret",
            )
        for part in _members(value):
            self._redactor.register(part)
        return self._redactor.register(value)

    def sent(self, name: str, to: SecretDestination) -> str:
        """The value of a declared secret for a server; Forbidden, and nothing is read, where that may not have it."""
        self._trust().require_host(name, to)
        return self.value(name)

    def check_allowed(self, name: str) -> None:
        """Forbidden where trust lacks what reading a declared secret needs; reads nothing."""
        if name in self._specs:
            check_allowed(self._specs[name], self._around)

    def files(self) -> tuple[Path, ...]:
        """The files that secrets are read from: they are never code."""
        files = (spec for spec in self._specs.values() if spec.origin == "file")
        return tuple(secret_path(spec, self._around) for spec in files)

    def register_known(self) -> None:
        """Register every value that is at hand, so that whatever is shown from now on is masked.

        What has to be run or asked for is registered when it is used.
        """
        for name, spec in self._specs.items():
            if is_local(spec):
                with suppress(TrainctlError):  # reported where the value is used
                    self.value(name)

    def declared_credential(self, weights: WeightsSpec) -> SourceCredential | None:
        """What opens a weights source by its own ``auth``; None if that names nothing. Forbidden if it may not be sent there."""
        if weights.auth is None:
            return None
        to = source_destination(weights, self._environ)
        if parse_source(weights.source).scheme in SCHEMES:
            opened = declared_bucket_credential(
                weights, lambda name: self.sent(name, to), self._environ, self._asked
            )
            return bind_and_mask(opened, weights, self._mask) if opened else None
        name = weights.auth.auth_secret_name or ""
        value = self.sent(name, to)
        return _require_header_safe(SourceCredential(value.strip(), f"secret {name}"))

    def usual_credential(self, weights: WeightsSpec) -> SourceCredential | None:
        """What opens a bucket by its platform's default credential chain; it is sent to no host that only the manifest names."""
        return bind_and_mask(
            default_bucket_credential(weights, self._environ, self._asked), weights, self._mask
        )

    def _mask(self, value: str) -> None:
        for part in (value, *_members(value)):
            self._redactor.register(part)

    def registry_login(self, image: ImageSpec) -> RegistryLogin | None:
        """The login to an image's registry; None if it declares none."""
        auth = image.docker_auth
        if auth is None:
            return None
        for name in auth.secrets:
            self._trust().require_host(name, registry_destination(auth))
        return registry_login(auth, self.value, self._redactor)

    def registered(self, credential: SourceCredential | None) -> SourceCredential | None:
        """A credential that was found elsewhere, masked from now on. One too short to be masked is no real token."""
        if credential is None:
            return None
        if len(credential.value) >= MIN_MASKED_LENGTH:
            self._redactor.register(credential.value)
        return _require_header_safe(credential)

    def _read(self, spec: SecretSpec) -> str:
        """What has to be run or asked for is so once, and by one thread."""
        if is_local(spec):
            return read(spec, self._around)
        return self._fetched.get(spec.name, lambda: read(spec, self._around))


def _require_header_safe(credential: SourceCredential) -> SourceCredential:
    """TrainctlError for what no header can hold: the library that would refuse it repeats it in its message."""
    value = credential.value
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise TrainctlError(
            f"{credential.origin} is not a valid token: it contains a space, a line break or a non-ASCII character",
            "Store only the token, without other characters.",
            code="unusable-secret",
        )
    return credential


def _members(value: str) -> Iterator[str]:
    """Of a secret that is a JSON object, what lies under names such as ``secret_access_key``: it may leak by itself.

    A key's id is no secret: it stands in every URL that was signed with the key.
    """
    try:
        document = json.loads(value) if value.lstrip().startswith("{") else {}
    except ValueError:
        return
    pending = [document]
    while pending:
        for name, member in pending.pop().items():
            if isinstance(member, dict):
                pending.append(member)
            elif (
                isinstance(member, str)
                and len(member) >= MIN_MASKED_LENGTH
                and is_secret_key(name)
                and not name.endswith("_id")
            ):
                yield member
