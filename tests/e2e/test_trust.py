"""What the user's trust file opens and closes: hosts, commands, files, policies; and who is told."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from jsonschema import Draft202012Validator

from tests.support.projects.project import ProjectHarness
from tests.support.servers.certificate_authority import authority
from tests.support.servers.web_server import WebServer, serve_web
from tests.support.storage.weights_data import noise
from trainctl_schemas import schema

SMALL = noise(50_000)
MANIFEST = """\
project: {name: demo}
secrets: {corp: {SECRET}}
weights:
  model: {source: "URL", mount_location: /app/models/tiny, auth_secret_name: corp}
jobs:
  sft:
    weights: [model]
    runtime: {start_commands: ["sha256sum /app/models/tiny/model.bin"]}
"""
FROM_ENV = "from: env, name: CORP_TOKEN"


@pytest.fixture
def web() -> Iterator[WebServer]:
    """A server that shows a file to who has the token."""
    with serve_web(authority().server) as running:
        running.put("/closed/model.bin", SMALL)
        yield running


@pytest.fixture
def elsewhere() -> Iterator[WebServer]:
    """Another server, which would like to see the token."""
    with serve_web(authority().server) as running:
        running.put("/closed/model.bin", SMALL)
        yield running


@pytest.fixture
def work(fresh: ProjectHarness, web: WebServer) -> ProjectHarness:
    """A project that wants the file."""
    fresh.variables |= {
        "SSL_CERT_FILE": str(authority().certificates),
        "CORP_TOKEN": web.token,
    }
    wants(fresh, web)
    return fresh


def wants(
    work: ProjectHarness, web: WebServer, secret: str = FROM_ENV, path: str = "/closed/model.bin"
) -> None:
    text = MANIFEST.replace("SECRET", secret).replace("URL", f"{web.url}{path}")
    work.write({"trainctl.yaml": text})


def host(web: WebServer) -> str:
    return web.url.removeprefix("https://")


def allow(web: WebServer, *more: str) -> str:
    return "\n".join([f'secret = "corp"\nhosts = ["{host(web)}"]', *more])


def tokens(web: WebServer) -> set[str | None]:
    return {request.headers.get("Authorization") for request in web.seen}


def test_a_trusted_host_gets_the_token(work: ProjectHarness, web: WebServer) -> None:
    """Without the entry nothing is asked (13); with it the weights are planned, mirrored, delivered and read."""
    refused = work.run("plan", code=13)
    assert "[untrusted-host]" in refused.stderr
    assert web.asked == []
    work.trust(allow(web))
    work.run("apply", "--auto-approve", "--wait")
    assert "model.bin" in work.run("logs", "sft").stdout
    assert tokens(web) == {f"Bearer {web.token}"}


@pytest.mark.parametrize("both", [False, True], ids=["one host", "both hosts"])
def test_a_token_does_not_follow_a_redirect(
    work: ProjectHarness, web: WebServer, elsewhere: WebServer, *, both: bool
) -> None:
    """What a trusted host redirects to isn't trusted by that, and isn't sent the token even where it is trusted itself."""
    web.redirects["/there"] = f"{elsewhere.url}/closed/model.bin"
    wants(work, web, path="/there")
    work.trust(allow(web), *([allow(elsewhere)] if both else []))
    work.run("plan", code=1)
    assert tokens(web) == {f"Bearer {web.token}"}
    assert tokens(elsewhere) == {None}


def test_a_saved_plan_is_judged_where_it_is_applied(work: ProjectHarness, web: WebServer) -> None:
    """Made by somebody who trusts that host, applied by somebody who doesn't: nothing begins."""
    work.trust(allow(web))
    work.run("plan", "--out", "saved.plan")
    work.trust()
    web.forget()
    work.run("apply", "saved.plan", code=13)
    assert web.asked == []
    assert not (work.directory / ".trainctl").exists()


def test_a_command_needs_trust(work: ProjectHarness, web: WebServer) -> None:
    """Without it the command isn't run; with it its output opens the source, and is masked."""
    wants(work, web, f"from: command, command: [sh, -c, 'touch ran; echo {web.token}']")
    work.run("validate")
    work.trust(allow(web))
    refused = work.run("plan", code=13)
    assert "[untrusted-command]" in refused.stderr
    assert not (work.directory / "ran").exists()
    work.trust(allow(web, "commands = true"))
    result = work.run("--log-level", "debug", "plan")
    assert (work.directory / "ran").exists()
    assert tokens(web) == {f"Bearer {web.token}"}
    assert web.token not in result.stdout.replace(f"echo {web.token}", "") + result.stderr


def test_policies_bind_whoever_plans(work: ProjectHarness, web: WebServer) -> None:
    """A source, a provider and a price beyond the user's limits end with 13; --trust lifts none of them."""
    text = (work.directory / "trainctl.yaml").read_text()
    work.write({"trainctl.yaml": text + "clusters: {here: {provider: local, price_per_hour: 9}}\n"})
    work.trust(allow(web))
    work.run("plan")
    work.write({"other.toml": f"[[allow]]\n{allow(web)}\n"})
    policy = '[[policy]]\nname = "ours"\n'
    for limit, says in (
        (
            'sources = ["hf://acme/*", "file:*"]',
            f"the source '{web.url}/closed/model.bin' is not allowed",
        ),
        ('providers = ["ssh"]', "the provider 'local' is not allowed"),
        ("max_hourly_cost = 8.5", "the plan costs 9.00 per hour"),
    ):
        work.trust(allow(web), policies=f"{policy}{limit}\n")
        done = work.run("plan", "--trust", "other.toml", code=13)
        assert says in done.stderr
        assert "Policy 'ours'" in done.stderr
        assert work.json("plan", code=13)["applyable"] is False
    work.trust(allow(web), policies=f'{policy}providers = ["loc*"]\nmax_hourly_cost = 9\n')
    work.run("plan")


def test_a_waiver_is_recorded_and_changes_bring_no_policies(work: ProjectHarness) -> None:
    """Policies of the base branch judge plan, saved plan and destroy; those of the checkout are refused."""
    budget = '[[policy]]\nname = "budget"\nmax_hourly_cost = 8\n'
    rule = "[[policy]]\nrule = \"plan.resource_changes.all(c, c.change.actions != ['delete'])\"\n"
    base = work.directory.parent / "policy.toml"
    base.write_text(budget + rule)
    cluster = "clusters: {here: {provider: local, price_per_hour: 9}}\n"
    work.write({"trainctl.yaml": f"project: {{name: demo}}\n{cluster}{JOB}", "policy.toml": budget})
    assert "git show" in work.run("plan", "--policy", "policy.toml", code=1).stderr
    work.run("plan", "--out", "../plan.bin")
    for command in (
        ("plan", "--policy", str(base)),
        ("apply", "--policy", str(base), "../plan.bin"),
        ("policy", "test", "--plan", "../plan.bin", "--policy", "policy.toml"),
    ):
        assert "the plan costs 9.00 per hour" in work.run(*command, code=13).stderr
    waiver = '[[waiver]]\npolicy = "budget"\nuntil = "9999-01-01"\nreason = "final run"\n'
    base.write_text(budget + rule + waiver)
    assert work.json("plan", "--policy", str(base))["policies"][0]["status"] == "waived"
    work.run("apply", "--policy", str(base), "../plan.bin")
    assert "waived until 9999-01-01: final run" in work.run("history").stdout
    done = work.run("destroy", "--auto-approve", "--policy", str(base), code=13)
    assert "the rule does not hold" in done.stderr


JOB = 'jobs: {train: {runtime: {start_commands: ["true"]}}}\n'


def test_a_trust_file_beside_the_manifest_is_refused(work: ProjectHarness, web: WebServer) -> None:
    """Who wrote the manifest would have written it too, so a home in the project gives no trust."""
    work.variables["XDG_CONFIG_HOME"] = str(work.directory / "config")
    work.write({"config/trainctl/trust.toml": f"[[allow]]\n{allow(web)}\n"})
    done = work.run("plan", code=1)
    assert "it is inside the directory of the manifest" in done.stderr
    work.run("plan", "--trust", "config/trainctl/trust.toml")


def test_check_tells_of_every_secret(work: ProjectHarness, web: WebServer) -> None:
    """Who uses it, where it would go, whether it may, whether it can be read: 13, 1 or 0; nothing is sent, no value is shown."""
    text = (work.directory / "trainctl.yaml").read_text()
    job = "    runtime: {environment_variables: {T: {secret: other}}, "
    text = text.replace("    runtime: {", job).replace(
        "secrets: {", "secrets: {other: {from: file, path: gone}, "
    )
    work.write({"trainctl.yaml": text})
    secrets = work.json("secrets", "check", code=13)
    assert list(Draft202012Validator(schema("secrets")).iter_errors(secrets)) == []
    corp, other = secrets["secrets"]
    use = {"by": "weights.model", "purpose": "source", "to": host(web), "allowed": False}
    assert (corp["readable"], corp["uses"]) == (True, [use])
    assert other["uses"][0]["to"] == "nodes of cluster.local"
    assert (other["readable"], other["uses"][0]["allowed"]) == (False, True)
    work.trust(allow(web))
    work.run("secrets", "check", code=1)
    work.write({"gone": "a value that is long enough"})
    shown = work.run("secrets", "check")
    assert "weights.model" in shown.stdout
    rows = work.run("secrets", "check", "--format", "csv").stdout.splitlines()
    assert rows[1] == f"corp,env,CORP_TOKEN,,True,weights.model,source,{host(web)},True"
    assert web.asked == []
    assert web.token not in json.dumps(secrets) + shown.stdout + shown.stderr + "".join(rows)
