"""What each section takes, and what is said of what it does not take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.projects.manifests import problems, summaries_by_position

JOB = "jobs:\n  sft:\n    runtime: {start_commands: [x]}\n"


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    """Of many kinds, in many sections, each at its own place and address."""
    text = """\
version: 2
clusters:
  lab: {provider: local, nodes: 0, gpu: 1, price_per_hour: -1}
weights:
  a: {source: "hf://a/b@", mount_loc: x}
  b: hf://owner
jobs:
  sft:
    cluster: lap
    weights: [aa, c, 5]
    compute: {node_count: 0, memory: 64GB, accelerator: "H100:x", availability_model: spto}
    runtime:
      start_commands: python train.py
      environment_variables: {BT_X: y, 1a: x, N: 5, S: {secret: nope}}
  "bad\\tname": {runtime: {start_commands: [x]}}
surprise: 1
"""
    found = summaries_by_position(problems(tmp_path, text))
    assert found == {
        "1:10": "version: expected 1",
        "3:33": "nodes must be at least 1",
        "3:36": "unknown key 'gpu'",
        "3:60": "price_per_hour must be at least 0",
        "5:15": "source: invalid branch, tag or commit after @ in 'hf://a/b@'",
        "5:28": "unknown key 'mount_loc'",
        "6:6": "weights.b: 'hf://owner' is not a Hugging Face source",
        "9:14": "cluster: undeclared cluster 'lap'",
        "10:15": "weights: undeclared weights 'aa'",
        "10:19": "weights: undeclared weights 'c'",
        "10:22": "weights[2]: expected text or a mapping",
        "11:27": "compute.node_count must be at least 1",
        "11:38": "compute.memory: not an amount of memory",
        "11:57": "compute.accelerator: not TYPE or TYPE:COUNT",
        "11:87": "compute.availability_model: expected 'dedicated' or 'spot'",
        "13:23": "runtime.start_commands: expected a list",
        "14:31": "runtime.environment_variables.BT_X: BT_X is reserved: trainctl sets it",
        "14:40": "runtime.environment_variables.1a: invalid name of an environment variable: '1a'",
        "14:50": "runtime.environment_variables.N: expected text or a mapping",
        "14:65": "runtime.environment_variables.S.secret: undeclared secret 'nope'",
        "15:3": "invalid name 'bad\\tname'",
        "16:1": "unknown key 'surprise'",
    }


def test_problems_say_what_to_write(tmp_path: Path) -> None:
    """The nearest key or name, and the address of the resource."""
    text = "jobs: {sft: {wieghts: [], cluster: locl, accelerator: H100, runtime: {start_comands: [x], prepare_commands: [y]}}}"
    found = {one.summary: one for one in problems(tmp_path, text)}
    assert found["unknown key 'wieghts'"].detail == "Did you mean 'weights'?"
    assert found["unknown key 'start_comands'"].detail == "Did you mean 'start_commands'?"
    assert found["unknown key 'prepare_commands'"].detail == "Move it to 'runtime.cache_config'."
    assert found["unknown key 'accelerator'"].detail == "Move it to 'compute'."
    deep = "jobs: {sft: {runtime: {max_duration: 4s, start_commands: [x], cache_config: {enabled: true, retry: {}, start_commands: []}}}}"
    found_deep = {one.summary: one.detail for one in problems(tmp_path, deep)}
    assert found_deep == {
        "unknown key 'max_duration'": "Move it one level up, next to 'runtime'.",
        "unknown key 'retry'": "Move it next to 'runtime'.",
        "unknown key 'start_commands'": "Move it one level up, next to 'cache_config'.",
    }
    assert "Did you mean 'local'?" in found["cluster: undeclared cluster 'locl'"].detail
    assert {one.address for one in found.values()} == {"job.sft"}


def test_what_is_wrong_hides_nothing_beside_it(tmp_path: Path) -> None:
    """A wrong item shifts no other's place; what a section can't do without is missing alone."""
    text = "jobs:\n  a:\n    weights: [5, nope, {sorce: x}]\n    cluster: nowhere\n"
    assert summaries_by_position(problems(tmp_path, text)) == {
        "2:3": "runtime is missing",
        "3:15": "weights[0]: expected text or a mapping",
        "3:18": "weights: undeclared weights 'nope'",
        "3:24": "weights[2].source is missing",
        "3:25": "unknown key 'sorce'",
        "4:14": "cluster: undeclared cluster 'nowhere'",
    }


def test_values_that_no_manifest_can_have_hide_nothing(tmp_path: Path) -> None:
    """Each is told at its place, beside whatever else is wrong."""
    text = 'jobs:\n  a:\n    labels: {x: "a\\0b", y: .inf}\n    cluster: nowhere\n    runtime: {start_commands: ["c\\0d"]}\n'
    found = summaries_by_position(problems(tmp_path, text))
    assert list(found) == ["3:17", "3:28", "4:14", "5:32"]
    assert ["NUL" in said for said in found.values()] == [True, False, False, True]


@pytest.mark.parametrize(
    "mount", ["/", "''", ".", "a/../b", "/a/..", "./", "/proc/x", "/etc", "~/x", '"a\\nb"']
)
def test_places_that_are_no_mount_are_refused(tmp_path: Path, mount: str) -> None:
    """Roots, climbing paths, and places whose hiding breaks the system."""
    text = f"weights: {{a: {{source: 'hf://a/b', mount_location: {mount}}}}}"
    (one,) = problems(tmp_path, text)
    assert one.summary.startswith("mount_location: ")
    assert one.address == "weights.a"


@pytest.mark.parametrize(
    "source",
    [
        "hf://a/b@",
        "hf://onlyname",
        "hf://a/b/c",
        "s3://",
        "S3://bucket/x",
        "r2://bucket/x",
        "azure://account",
        "http://host/file",
        "az://a/b",
        "file://relative",
        "https://host",
        "/absolute",
        "Qwen/Qwen3-0.6B",
        "file:../..",
    ],
)
def test_sources_that_are_none_are_refused(tmp_path: Path, source: str) -> None:
    """Declared, in place as text, and in place in full."""
    declared = problems(tmp_path, f"weights: {{a: '{source}'}}")
    short = problems(
        tmp_path, f"jobs: {{j: {{weights: ['{source}'], runtime: {{start_commands: [x]}}}}}}"
    )
    full = problems(
        tmp_path,
        f"jobs: {{j: {{weights: [{{source: '{source}'}}], runtime: {{start_commands: [x]}}}}}}",
    )
    assert len(declared) == len(short) == len(full) == 1
    assert declared[0].detail != ""


DIGEST = "Ab" * 32


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (f"{{source: 'https://host/a', sha256: {DIGEST}}}", []),
        ("{source: 'https://host/a', sha256: abc}", ["sha256: expected 64 hexadecimal digits"]),
        (f"{{source: 'https://host/a', sha256: {DIGEST}0}}", ["sha256: expected 64 hexadecimal digits"]),
        (f"{{source: 'hf://a/b', sha256: {DIGEST}}}", ["weights.a: sha256 is supported for https:// sources only"]),
    ],
)  # fmt: skip
def test_a_declared_digest(tmp_path: Path, section: str, said: list[str]) -> None:
    """Sixty-four hexadecimal digits, of a source that is one file."""
    found = problems(tmp_path, f"weights: {{a: {section}}}")
    assert [one.summary for one in found] == said
    assert all(one.detail for one in found)


def test_a_source_without_a_name_needs_a_mount(tmp_path: Path) -> None:
    """With one it is as good as any."""
    text = "weights: {a: {source: 'file:../..', mount_location: data}}"
    assert problems(tmp_path, text) == []


SECRETS = [
    "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "https://user:pa55word@host/file",
    "https://host/file?X-Amz-Signature=0123456789abcdef",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "text",
    [
        "weights: {a: '%s'}",
        "weights: {a: {source: '%s', mount_location: m}}",
        "jobs: {j: {weights: ['%s'], runtime: {start_commands: [x]}}}",
        "jobs: {j: {runtime: {start_commands: ['%s']}}}",
        "jobs: {j: {runtime: {start_commands: [x], environment_variables: {A: '%s'}}}}",
        "jobs: {j: {cluster: '%s', runtime: {start_commands: [x]}}}",
        "jobs: {j: {priority: '%s', runtime: {start_commands: [x]}}}",
        "secrets: {a: {from: env, value: '%s'}}",
        "secrets: {a: '%s'}",
        "vars: {a: '%s'}",
        "vars: {a: '%s'}\nproject: {description: '${{ var.a }}'}",
        "clusters: {c: {provider: local, nodes: '%s'}}",
        "clusters: {c: {provider: '%s'}}",
        "mirror: {url: '%s'}",
        "'%s': 1",
        "weights: {'%s': 5}",
        "jobs: {j: {labels: {'%s': 5}, runtime: {start_commands: ['${{ var.%s }}']}}}",
    ],
)
def test_a_credential_in_the_text_is_refused_and_never_shown(
    tmp_path: Path, secret: str, text: str
) -> None:
    """Wherever it stands, whatever else is wrong with it."""
    found = problems(tmp_path, text.replace("%s", secret))
    assert any("looks like a credential" in one.summary for one in found)
    assert secret not in "".join(f"{one.to_json()}" for one in found)


def test_names_that_only_look_like_one_are_taken(tmp_path: Path) -> None:
    """Secret names, package names and revisions are no tokens."""
    text = """\
secrets: {hf_access_token: {from: env, name: HF_TOKEN}}
weights: {hf_transfer: 'hf://a/b@0123456789abcdef0123456789abcdef01234567'}
jobs: {j: {runtime: {start_commands: ['git clone https://x:$TOKEN@github.com/a/b', 'sk-learn']}}}
"""
    assert problems(tmp_path, text) == []


@pytest.mark.parametrize(
    "value", ["{PASSWORD: 12345678}", "{X: 12345678}"], ids=["by name", "any variable"]
)
def test_values_of_the_environment_are_never_shown(tmp_path: Path, value: str) -> None:
    """A number without quotes may be a password."""
    text = f"jobs: {{j: {{runtime: {{start_commands: [x], environment_variables: {value}}}}}}}"
    (one,) = problems(tmp_path, text)
    assert "12345678" not in str(one.to_json())
    assert "quotes" in one.detail


@pytest.mark.parametrize(
    "section",
    [
        "{from: env}",
        "{from: file, path: sub/token}",
        "{from: file, path: ~/token}",
        "{from: command, command: [pass, show, hf]}",
        "{from: aws-secrets-manager, name: prod/hf, region: us-west-2, key: token}",
        "{from: keyring, name: me, service: hub, version: 3}",
    ],
)
def test_secrets_come_from_many_places(tmp_path: Path, section: str) -> None:
    """What each may read is the trust's to say, not the manifest's."""
    assert problems(tmp_path, f"secrets: {{a: {section}}}") == []


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("{from: command}", "'from: command' requires 'command'"),
        ("{from: command, command: pass show hf}", "expected a list"),
        ("{from: command, command: []}", "is empty"),
        ("{from: command, command: [a], name: x}", "'name' can't be used with 'from: command'"),
        ("{from: keyring, region: us-west-2}", "'region' can't be used with 'from: keyring'"),
        ("{from: env, key: x}", "'key' can't be used with 'from: env'"),
        (
            "{from: aws-secrets-manager, path: x}",
            "'path' can't be used with 'from: aws-secrets-manager'",
        ),
        ("{from: aws-secrets-manager, region: 'evil.example/#'}", "region"),
        ("{from: vault}", "expected 'env', 'file'"),
        ("{from: keyring, servce: x}", "unknown key 'servce'"),
    ],
)
def test_keys_of_secrets_fit_where_they_come_from(tmp_path: Path, section: str, says: str) -> None:
    """What another origin takes is an error, and so is what none takes."""
    (one,) = problems(tmp_path, f"secrets: {{a: {section}}}")
    assert says in one.summary


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("secrets: {a: {from: env, path: x}}", "'path' can't be used with 'from: env'"),
        ("secrets: {a: {from: file}}", "'from: file' requires 'path'"),
        ("project: {name: a}\nprojects: {b: {}}", "both 'project' and 'projects' are set"),
        ("mirror: {url: 'ftp://x/y'}", "unsupported storage URL"),
        ("mirror: {url: 'file://x/y'}", "expected an absolute path after file://"),
        ("mirror: {url: 'file:///x', endpoint_url: 'http://h'}", "can't be used with a directory"),
        ("caches: {a: {size: 5XB}}", "not a size"),
        (
            "weights: {a: {source: 'hf://a/b', allow_patterns: []}}",
            "allow_patterns: an empty list of patterns matches no file",
        ),
        ("caches: {a: {dir: relative}}", "dir: expected an absolute directory"),
        ("vars: {a: [1]}", "vars.a: expected"),
        ("vars: {a: }", "vars.a: expected"),
        ("jobs:", "jobs: expected a mapping"),
        ("jobs: {a: {code: /abs, runtime: {start_commands: [x]}}}", "code: expected a path"),
        ("jobs: {a: {code: ./nowhere, runtime: {start_commands: [x]}}}", "is not a directory"),
        ("jobs: {a: {runtime: {start_commands: []}}}", "runtime.start_commands is empty"),
        ("jobs: {a: {runtime: {start_commands: ['']}}}", "value is empty"),
        (
            "jobs: {a: {lifecycle: {ignore_changes: [computer]}, runtime: {start_commands: [x]}}}",
            "unknown attribute 'computer'",
        ),
        (
            (
                "jobs: {a: {image: {base_image: i, docker_auth: {auth_method: AWS_IAM, registry: r}},"
                " runtime: {start_commands: [x]}}}"
            ),
            "AWS_IAM requires aws_iam_docker_auth",
        ),
        (
            "jobs: {a: {image: {base_image: PyTorch/x}, runtime: {start_commands: [x]}}}",
            "not an image name",
        ),
        ("clusters: {a: {provider: loacl}}", "unknown provider 'loacl'"),
        ("clusters: {a: {}}", "provider is missing"),
        (
            "jobs: {a: {max_duration: 0s, runtime: {start_commands: [x]}}}",
            "max_duration: duration must be positive",
        ),
        ('jobs: {a: {runtime: {start_commands: ["a\\0b"]}}}', "text can't contain NUL"),
    ],
)
def test_single_rules(tmp_path: Path, text: str, summary: str) -> None:
    """Each rule alone gives exactly its own problem."""
    (one,) = problems(tmp_path, text)
    assert summary in one.summary
    assert one.detail


ROLE = "arn:aws:iam::123456789012:role/team/reader"
PROVIDER = "projects/1/locations/global/workloadIdentityPools/ci/providers/github"
AUTHS = {
    "aws_assume_role_arn": ("s3", "AWS_ASSUME_ROLE", {"aws_assume_role_arn": ROLE, "aws_assume_role_region": "eu-west-1"}),
    "aws_assume_role_region": ("s3", "AWS_ASSUME_ROLE", {"aws_assume_role_arn": ROLE, "aws_assume_role_region": "us-gov-west-1"}),
    "aws_oidc_role_arn": ("s3", "AWS_OIDC", {"aws_oidc_role_arn": ROLE.replace("aws", "aws-cn"), "aws_oidc_region": "cn-north-1"}),
    "aws_oidc_region": ("s3", "AWS_OIDC", {"aws_oidc_role_arn": ROLE, "aws_oidc_region": "us-east-1"}),
    "gcp_oidc_service_account": ("gs", "GCP_OIDC", {"gcp_oidc_service_account": "r@a-1.iam.gserviceaccount.com", "gcp_oidc_workload_id_provider": PROVIDER}),
    "gcp_oidc_workload_id_provider": ("gs", "GCP_OIDC", {"gcp_oidc_service_account": "1-compute@developer.gserviceaccount.com", "gcp_oidc_workload_id_provider": f"//iam.googleapis.com/{PROVIDER}"}),
}  # fmt: skip


@pytest.mark.parametrize("field", AUTHS)
@pytest.mark.parametrize("value", ["nope", "a b", "x@127.0.0.1:9/#", "us-east-1/../x"])
def test_what_clouds_call_roles_and_accounts_is_checked(
    tmp_path: Path, field: str, value: str
) -> None:
    """In the manifest, where it is written, and not by who asks the cloud; what is right is let be."""
    scheme, method, fields = AUTHS[field]

    def said(auth: dict[str, str]) -> list[str]:
        source = {"source": f"{scheme}://bucket/p", "auth": {"auth_method": method, **auth}}
        return [one.summary for one in problems(tmp_path, f"weights: {{w: {json.dumps(source)}}}")]

    (one,) = said({**fields, field: value})
    assert f"auth.{field}: not " in one
    assert said(fields) == []


@pytest.mark.parametrize(
    ("method", "block", "key"),
    [
        ("AWS_OIDC", {"role_arn": "nope", "region": "eu-west-1"}, "role_arn"),
        ("AWS_ASSUME_ROLE", {"role_arn": ROLE, "region": "a b"}, "region"),
        ("GCP_OIDC", {"service_account": "x", "workload_identity_provider": PROVIDER}, "service_account"),
        ("GCP_OIDC", {"service_account": "x@a.iam.gserviceaccount.com", "workload_identity_provider": "y"}, "workload_identity_provider"),
    ],
)  # fmt: skip
def test_so_it_is_for_images(tmp_path: Path, method: str, block: dict[str, str], key: str) -> None:
    """A registry's login names the same roles and accounts."""
    auth = {"auth_method": method, "registry": "r.example", f"{method.lower()}_docker_auth": block}
    image = json.dumps({"base_image": "i", "docker_auth": auth})
    text = f"jobs: {{a: {{image: {image}, runtime: {{start_commands: [x]}}}}}}"

    (one,) = problems(tmp_path, text)

    assert f"{key}: not " in one.summary


@pytest.mark.parametrize("section", ["mirror", "checkpoints", "state"])
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://ABC/p", "invalid bucket name in"),
        ("s3://ab/p", "invalid bucket name in"),
        ("gs://ab", "invalid bucket name in"),
        ("s3://bucket//x", "contains an empty part"),
        ("s3://bucket/p\tq", "contains a space or a control character"),
        ("file:///data/p%00q", "has no path or bucket"),
        ("file:///data/%2e%2e/q", "has no path or bucket"),
        ("file:///data/p%2Fq", "contains an encoded slash (%2F)"),
        ("r2://bucket/p", "missing account ID or bucket in"),
        ("r2://account.ab/p", "missing account ID or bucket in"),
        ("azure://acc/c", "missing account or container in"),
        ("azure://acc/co/p", "missing account or container in"),
    ],
)
def test_a_bucket_to_keep_things_in_is_called_as_one_of_weights(
    tmp_path: Path, section: str, url: str, says: str
) -> None:
    """What no bucket can be called is an error of the manifest, at its line, and not of who opens it later."""
    (one,) = problems(tmp_path, f"{section}:\n  url: {json.dumps(url)}\n")
    assert says in one.summary
    assert one.detail.startswith(("Use ", "Remove "))
    assert one.code == "invalid-location"
    assert one.where is not None
    assert one.where.line == 2


@pytest.mark.parametrize(
    ("commands", "detail"),
    [
        ("python train.py", 'Found the text "python train.py". Write ["python train.py"].'),
        ("3", "Found 3."),
        ("{a: b}", "Found a mapping."),
    ],
)
def test_what_is_no_list_is_told_how_to_be_one(tmp_path: Path, commands: str, detail: str) -> None:
    """A text with what to write; other things without advice that is for text."""
    (one,) = problems(tmp_path, f"jobs: {{a: {{runtime: {{start_commands: {commands}}}}}}}")
    assert (one.summary, one.detail) == ("runtime.start_commands: expected a list", detail)


@pytest.mark.parametrize(
    ("image", "right"),
    [
        ("pytorch/pytorch:2.7.0-cuda12.8-cudnn9-runtime", True),
        ("python", True),
        ("localhost/busybox:1", True),
        ("127.0.0.1:5000/a/b__c@sha256:" + "0" * 64, True),
        ("host:5000/a:b.c", True),
        ("[::1]:5000/a", True),
        ("nvcr.io/nvidia/pytorch:24.01-py3", True),
        ("UPPER/case", False),
        ("a b", False),
        ("docker..io/x:y", False),
        ("docker://python", False),
        ("--privileged", False),
        ("a" * 5000 + "!", False),
        ("a-" * 2000 + "!", False),
    ],
)
def test_names_of_images(tmp_path: Path, image: str, right: bool) -> None:
    """Those that engines take are taken; others are told before anything is pulled, in little time."""
    text = f"jobs: {{a: {{image: {{base_image: '{image}'}}, runtime: {{start_commands: [x]}}}}}}"
    assert (problems(tmp_path, text) == []) is right


def test_toml_problems_have_a_path(tmp_path: Path) -> None:
    """The same mistake is told in the same words, at its key."""
    text = "[jobs.sft]\ncluster = 'nowhere'\n[jobs.sft.runtime]\nstart_commands = ['x']\n"
    found = problems(tmp_path, text, "trainctl.toml")
    assert [(str(one.where), one.summary) for one in found] == [
        ("trainctl.toml: jobs.sft.cluster", "cluster: undeclared cluster 'nowhere'")
    ]
