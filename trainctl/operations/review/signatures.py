"""Signatures of plan files by SSH keys, as git signs commits; see ssh-keygen(1)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from trainctl.errors import PermissionDenied, TrainctlError, UsageError

_NAMESPACE = "trainctl-plan"


def signature_of(plan: Path) -> Path:
    """Return the path of a plan file's signature, next to it."""
    return plan.with_name(f"{plan.name}.sig")


def sign(data: bytes, key: Path) -> str:
    """Return a signature; with a public key, ssh-agent signs. TrainctlError if that fails."""
    done = _ssh_keygen("sign", "-f", str(key), data=data)
    if done.returncode:
        raise TrainctlError(
            f"cannot sign the plan with {key}", _reason(done), code="signing-failed"
        )
    return done.stdout.decode()


def require_signature(data: bytes, signature: Path, signers: Path) -> str:
    """Return the signer, one of the file ``signers``; PermissionDenied without a valid signature."""
    if not signers.is_file():
        raise UsageError(f"--require-signature {signers}: file not found")
    if not signature.is_file():
        raise PermissionDenied(
            f"the plan is not signed: {signature} not found",
            "To sign a plan, run: trainctl plan --out FILE --sign KEY",
            code="untrusted-signature",
        )
    places = ("-s", str(signature), "-f", str(signers))
    found = _ssh_keygen("find-principals", *places)
    reason = _reason(found)
    for signer in found.stdout.decode(errors="replace").splitlines():
        verified = _ssh_keygen("verify", *places, "-I", signer, data=data)
        if verified.returncode == 0:
            return signer
        reason = _reason(verified)
    raise PermissionDenied(
        f"no signer in {signers} has signed this plan",
        f"ssh-keygen reports: {reason}\nThe plan was changed after signing, or its key is unknown or expired.",
        code="untrusted-signature",
    )


def _ssh_keygen(act: str, *args: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["ssh-keygen", "-Y", act, "-n", _NAMESPACE, *args],
            input=data, capture_output=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise TrainctlError(
            "ssh-keygen not found", "Install OpenSSH 8.2 or newer.", code="signing-failed"
        ) from None


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    text = (done.stderr or done.stdout).decode(errors="replace").strip()
    return text[-500:] or f"exit status {done.returncode}"
