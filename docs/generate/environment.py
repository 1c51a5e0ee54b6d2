"""``docs/reference/environment.md``, from the tables of variables in the code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from docs.generate.markdown import code, table, text_of
from trainctl.inputs.environment import JOB_VARIABLES
from trainctl.node.environment.container import CONTAINER_PATHS

INSIDE_JOBS: Mapping[str, str] = {
    "TRAINCTL_WEIGHTS_NAME": "Directory of the weights `NAME`, in upper case with `_` for other signs",
    "TRAINCTL_RUN_DIRECTORY": "Directory of the run on its node",
    "TRAINCTL_PROGRESS": "File for JSON lines of [training progress](../guides/progress.md)",
    "KUBEFLOW_TRAINER_STATUS_URL": "URL to post training progress to, by KEP-2779 of Kubeflow",
    "KUBEFLOW_TRAINER_STATUS_TOKEN": "File of the token to post it",
    "KUBEFLOW_TRAINER_STATUS_CA_CERT": "File of a certificate, not used by the URL",
    "KUBEFLOW_TRAINER_SERVER_…": "The same three, with the names of Kubeflow's releases",
    "CUDA_VISIBLE_DEVICES": "GPUs of the job, by index (NVIDIA)",
    "CUDA_DEVICE_ORDER": "`PCI_BUS_ID`, which the indices refer to",
    "HIP_VISIBLE_DEVICES": "GPUs of the job, by index (AMD)",
    "MASTER_ADDR": "Address of rank 0 (jobs on several nodes)",
    "MASTER_PORT": "Free port of rank 0 (jobs on several nodes)",
    "HF_HOME": "Hub cache below the training cache, with `enable_legacy_hf_mount`",
}
COMMAND: Mapping[str, str] = {
    "TRAINCTL_STATE": "Location of the state, unless `--state` names it",
    "TRAINCTL_POLICY": "File of policies that apply in addition, as of `--policy`",
    "TRAINCTL_VAR_name": "Value of the variable `name`; `--var-file` and `--var` win",
    "NO_COLOR": "Print without color",
    "CI": "Suppress output that CI systems would interpret as commands",
    "GITHUB_ACTIONS": "Same as `CI`",
    "TF_BUILD": "Same as `CI`",
    "XDG_CONFIG_HOME": "Parent of the directory of the trust file [`~/.config`]",
    "XDG_DATA_HOME": "Parent of the directory of the mirror and checkpoints [`~/.local/share`]",
    "XDG_CACHE_HOME": "Parent of the directory of caches [`~/.cache`]",
    "XDG_RUNTIME_DIR": "On a node: directory of the user's service manager [`/run/user/UID`]",
    "HTTPS_PROXY": "Proxy for HTTPS; `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` also apply",
}
CERTIFICATES: Mapping[str, str] = {
    "SSL_CERT_FILE": "File of certificate authorities",
    "SSL_CERT_DIR": "Directory of certificate authorities",
    "AWS_CA_BUNDLE": "Same as `SSL_CERT_FILE`",
    "REQUESTS_CA_BUNDLE": "Same as `SSL_CERT_FILE`",
    "CURL_CA_BUNDLE": "Same as `SSL_CERT_FILE`",
}
HUB: Mapping[str, str] = {
    "HF_TOKEN": "Token of the Hugging Face Hub",
    "HUGGING_FACE_HUB_TOKEN": "Same as `HF_TOKEN`",
    "HF_TOKEN_PATH": "File of the token of `hf auth login` [`~/.cache/huggingface/token`]",
    "HF_OIDC_RESOURCE": "Repository of a trusted publisher, to exchange an identity for a token",
    "HF_ENDPOINT": "URL of the Hub [`https://huggingface.co`]",
}
S3: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "Access key",
    "AWS_SECRET_ACCESS_KEY": "Secret of the access key",
    "AWS_SESSION_TOKEN": "Session token of temporary keys",
    "AWS_REGION": "Region [`us-east-1`]",
    "AWS_DEFAULT_REGION": "Same as `AWS_REGION`",
    "AWS_PROFILE": "Profile of the files in `~/.aws` (needs the extra `aws`)",
    "AWS_SHARED_CREDENTIALS_FILE": "File of profiles [`~/.aws/credentials`]",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "Identity token for a role",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "Credentials of an ECS task",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "Credentials of an EKS pod",
    "AWS_EC2_METADATA_DISABLED": "`true`: don't use the machine's own account",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT": "URL of the metadata server",
    "AWS_ENDPOINT_URL_S3": "URL of an S3-compatible server",
    "AWS_ENDPOINT_URL": "Same as `AWS_ENDPOINT_URL_S3`, which wins",
    "TRAINCTL_AWS_EXTERNAL_ID": "External ID for `AWS_ASSUME_ROLE`",
    "R2_ACCESS_KEY_ID": "Access key for `r2://`",
    "R2_SECRET_ACCESS_KEY": "Secret of the access key for `r2://`",
}
GOOGLE: Mapping[str, str] = {
    "GOOGLE_APPLICATION_CREDENTIALS": "File of a service account or user credential",
    "GOOGLE_CLOUD_PROJECT": "Project that requests with `requester_pays` are billed to",
    "GOOGLE_CLOUD_QUOTA_PROJECT": "The same, and goes before it",
    "GOOGLE_OIDC_TOKEN_FILE": "Identity token for `GCP_OIDC`",
    "GOOGLE_STS_URL": "URL of the token service",
    "GOOGLE_IAM_CREDENTIALS_URL": "URL of the IAM credentials service",
    "GCE_METADATA_HOST": "Host of the metadata server",
    "STORAGE_EMULATOR_HOST": "URL of an emulator",
}
AZURE: Mapping[str, str] = {
    "AZURE_STORAGE_CONNECTION_STRING": "Connection string",
    "AZURE_STORAGE_ACCOUNT": "Account that the keys below are for",
    "AZURE_STORAGE_ACCOUNT_NAME": "Same as `AZURE_STORAGE_ACCOUNT`",
    "AZURE_STORAGE_ACCOUNT_KEY": "Account key",
    "AZURE_STORAGE_ACCESS_KEY": "Same as `AZURE_STORAGE_ACCOUNT_KEY`",
    "AZURE_STORAGE_KEY": "Same as `AZURE_STORAGE_ACCOUNT_KEY`",
    "AZURE_STORAGE_SAS_TOKEN": "Shared access signature",
    "AZURE_STORAGE_SAS_KEY": "Same as `AZURE_STORAGE_SAS_TOKEN`",
    "AZURE_TENANT_ID": "Tenant of a service principal",
    "AZURE_CLIENT_ID": "ID of a service principal",
    "AZURE_CLIENT_SECRET": "Secret of a service principal",
    "AZURE_CLIENT_CERTIFICATE_PATH": "Certificate of a service principal (extra `azure`)",
    "AZURE_FEDERATED_TOKEN_FILE": "Token of a workload identity (extra `azure`)",
    "AZURE_AUTHORITY_HOST": "URL of Entra ID",
    "AZURE_STORAGE_ENDPOINT": "URL of a Blob server",
    "AZURE_STORAGE_BLOB_ENDPOINT": "Same as `AZURE_STORAGE_ENDPOINT`",
    "AZURE_POD_IDENTITY_AUTHORITY_HOST": "URL of the metadata server",
    "IDENTITY_ENDPOINT": "URL of the managed identity service",
}
GITHUB: Mapping[str, str] = {
    "ACTIONS_ID_TOKEN_REQUEST_URL": "Source of identity tokens for `AWS_OIDC` and `GCP_OIDC`",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "Token for that source",
    "GITHUB_TRIGGERING_ACTOR": "User that `history` shows, else `GITHUB_ACTOR`",
    "GITHUB_SHA": "Commit in `history --format json`",
    "GITHUB_SERVER_URL": "With `GITHUB_REPOSITORY` and `GITHUB_RUN_ID`: URL of the run there",
}
GITLAB: Mapping[str, str] = {
    "GITLAB_CI": "Use the variables below",
    "GITLAB_USER_LOGIN": "User that `history` shows",
    "CI_SERVER_URL": "Server of that user",
    "CI_COMMIT_SHA": "Commit in `history --format json`",
    "CI_JOB_URL": "URL of the run there",
}
GROUPS: Mapping[str, Mapping[str, str]] = {
    "Output, directories and network": COMMAND,
    "Certificates": CERTIFICATES,
    "Hugging Face Hub": HUB,
    "S3 and R2": S3,
    "Google Cloud Storage": GOOGLE,
    "Azure Blob Storage": AZURE,
    "GitHub Actions": GITHUB,
    "GitLab CI": GITLAB,
}
"""Variables that the command reads, by what they are for."""
_INTRODUCTION = """\
# Environment variables

Jobs find the variables of the first section. The other sections list what `trainctl` itself reads.
Defaults are in brackets.
"""


_STARTUP_FILES = (
    "On a host the commands run after the startup files of the user's login shell. These may add",
    "variables and extend `PATH`. Variables of this table, of the manifest and of secrets, and those",
    "that Slurm sets, keep the run's value. A startup file that ends or replaces the shell fails the",
    "deployment.",
    "",
)


def page() -> str:
    """Return the text of the page."""
    lines = [_INTRODUCTION, "## Variables of jobs", ""]
    lines += table(("variable", "value", "in containers"), _job_rows())
    lines += _STARTUP_FILES
    for title, variables in GROUPS.items():
        lines += [f"## {title}", "", *table(("variable", "meaning"), _rows(variables.items()))]
    return text_of(lines)


def _job_rows() -> Iterator[tuple[str, str, str]]:
    for name, meaning in {**JOB_VARIABLES, **INSIDE_JOBS}.items():
        yield code(name), meaning, code(CONTAINER_PATHS.get(name, ""))


def _rows(variables: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    return ((code(name), meaning) for name, meaning in variables)
