"""Values of declared secrets, registered for redaction when read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from trainctl.desired.values import SecretSpec
from trainctl.errors import TrainctlError
from trainctl.model.credentials import is_secret_key
from trainctl.model.redaction import Redactor
from trainctl.model.single_flight import SingleFlight
from trainctl.model.specs.image import Image
from trainctl.model.specs.resource import WeightsSpec
from trainctl.model.trust import SecretDestination, Trust, default_trust
from trainctl.secrets.bucket_credentials import (
    CredentialCache,
    bind_and_mask,
    bucket_credential,
)

if TYPE_CHECKING:
    from trainctl.base.protocol.host import RegistryLogin
    from trainctl.plugin_api.sources import SourceCredential
    from trainctl.secrets.sources import SecretSources

MIN_MASKED_LENGTH = 8
"""Shorter values can't be masked without masking ordinary words."""


class SecretResolver:
    """Thread-safe access to the values of a manifest's ``secrets``, subject to trust."""

    def __init__(
        self,
        specs: Mapping[str, SecretSpec],
        directory: Path,
        environ: Mapping[str, str],
        redactor: Redactor,
        trust: Callable[[], Trust] = default_trust,
    ) -> None:
        self.specs = specs
        self._directory = directory
        self._environ = environ
        self._redactor = redactor
        self._trust = trust
        self._values = SingleFlight[str](forget_errors=True)
        self._credentials = CredentialCache()

    @cached_property
    def _sources(self) -> SecretSources:
        from trainctl.secrets.sources import SecretSources  # slow to import

        register = self._redactor.register
        return SecretSources(self._directory, self._environ, self._trust, register)

    def register(self, value: str) -> str:
        """Register a credential created by this process for redaction."""
        return self._redactor.register(value)

    def value(self, name: str) -> str:
        """Read a declared secret; raise TrainctlError if missing or untrusted."""
        from trainctl.secrets.sources import is_local, read

        spec = self.specs.get(name)
        if spec is None:
            raise TrainctlError(
                f"secret {name!r} is not declared",
                f"Add it under `secrets:`, as `{name}: {{from: env}}`.",
                code="undeclared-name",
            )
        if is_local(spec):
            return self.accept(spec, read(spec, self._sources))
        # One command or request is enough.
        return self.accept(spec, self._values.get(name, lambda: read(spec, self._sources)))

    def accept(self, spec: SecretSpec, value: str) -> str:
        """Validate a value and register it for redaction; raise TrainctlError if invalid."""
        from trainctl.secrets.sources import missing_error

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
        """Read a secret for a host; raise PermissionDenied without reading if untrusted."""
        self._trust().require_host(name, to)
        return self.value(name)

    def check_allowed(self, name: str) -> None:
        """Raise PermissionDenied if trust does not allow reading a declared secret."""
        from trainctl.secrets.sources import check_allowed

        if name in self.specs:
            check_allowed(self.specs[name], self._sources)

    def files(self) -> tuple[Path, ...]:
        """Return the files of secrets, which are never part of the code."""
        files = [spec for spec in self.specs.values() if spec.origin == "file"]
        if not files:
            return ()
        from trainctl.secrets.sources import secret_path

        return tuple(secret_path(spec, self._sources) for spec in files)

    def register_known(self) -> None:
        """Register all values that need no command or request; others when they are used."""
        for name, spec in self.specs.items():
            from trainctl.secrets.sources import is_local

            if is_local(spec):
                with suppress(TrainctlError):  # reported where the value is used
                    self.value(name)

    def declared_credential(self, weights: WeightsSpec) -> SourceCredential | None:
        """Return the credential in ``auth``; raise PermissionDenied if untrusted."""
        from trainctl.buckets.location import SCHEMES
        from trainctl.plugin_api.sources import SourceCredential
        from trainctl.secrets.destinations import source_destination

        if weights.auth is None:
            return None
        if weights.uri.scheme in SCHEMES:
            return self.bucket_credential(weights, default=False)
        name = weights.auth.auth_secret_name or ""
        to = source_destination(weights, self._environ)
        value = self.sent(name, to)
        return _require_header_safe(SourceCredential(value.strip(), f"secret {name}"))

    def bucket_credential(
        self, weights: WeightsSpec, *, default: bool = True
    ) -> SourceCredential | None:
        """Return the credential in ``auth``, or (``default``) of the platform's default credential chain."""
        credential = bucket_credential(
            weights, self.sent, self._environ, self._credentials, default=default
        )
        if credential is None and not default:
            return None
        return bind_and_mask(credential, weights, self._mask)

    def _mask(self, value: str) -> None:
        for part in (value, *_members(value)):
            self._redactor.register(part)

    def registry_login(self, image: Image) -> RegistryLogin | None:
        """Return the login to an image's registry, None if not declared."""
        from trainctl.secrets.destinations import registry_destination
        from trainctl.secrets.registries import registry_login

        auth = image.docker_auth
        if auth is None:
            return None
        for name in auth.secrets:
            self._trust().require_host(name, registry_destination(auth))
        return registry_login(auth, self.value, self.register)

    def registered(self, credential: SourceCredential | None) -> SourceCredential | None:
        """Register a credential for redaction, unless too short for a token."""
        if credential is None:
            return None
        if len(credential.value) >= MIN_MASKED_LENGTH:
            self._redactor.register(credential.value)
        return _require_header_safe(credential)


def _require_header_safe(credential: SourceCredential) -> SourceCredential:
    """Reject values invalid in headers, which libraries would repeat in errors."""
    value = credential.value
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise TrainctlError(
            f"{credential.origin} is not a valid token: it contains a space, a line break or a non-ASCII character",
            "Store only the token, without other characters.",
            code="unusable-secret",
        )
    return credential


def _members(value: str) -> Iterator[str]:
    """Yield secret members of a JSON object, which may leak on their own.

    Ids of keys are not secret; presigned URLs contain them.
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
