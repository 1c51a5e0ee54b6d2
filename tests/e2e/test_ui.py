"""The pages of ``trainctl ui`` in Chromium: each view of a real project, and what must never happen there."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Route, expect
from starlette.datastructures import QueryParams

from tests.support.node_program.nodes import wait_for
from tests.support.projects.many_runs import record_points, record_runs
from tests.support.projects.project import ProjectHarness, project
from tests.support.servers.pages import Visit, chromium, served, site_of, visit
from trainctl.remote.agent import NodeAgent
from trainctl.ui import pages
from trainctl.ui.runs import run_page

EVIL = "<img src=x onerror=document.title='hacked'><script>document.title='hacked'</script>"
SECRET = "s3cret-value-of-a-token"
MANIFEST = """\
project: {name: demo}
clusters:
  lab: {provider: local, nodes: 2}
weights:
  tiny: {source: file:./weights}
secrets: {token: {from: env, name: TOKEN}}
jobs:
  train:
    code: ./src
    weights: [tiny]
    runtime:
      start_commands: ["python3 train.py 40 GATE"]
      environment_variables: {TOKEN: {secret: token}}
      checkpointing_config: {enabled: true}
  fit:
    code: ./src
    matrix: {lr: [1e-3, 1e-2, EVIL]}
    runtime:
      start_commands: ["python3 train.py 30"]
      environment_variables: {LR: "${{ matrix.lr }}"}
      checkpointing_config: {enabled: true}
  check:
    code: ./src
    for_each_checkpoint: {job: train}
    runtime: {start_commands: ['echo "{\\"score\\": 0.75}" >> $TRAINCTL_PROGRESS']}
  broken: {code: ./src, runtime: {start_commands: ['for s in 1 2 3 2 4; do echo "{\\"step\\": $s, \\"x\\": $s}" >> $TRAINCTL_PROGRESS; done; exit 3']}}
"""
TRAIN = """\
import json, os, pathlib, sys, time
def report(step):
    row = {"step": step, "total": 60, "loss": 2 / step, "<b>key</b>": step, "k" * 60: 1}
    with open(os.environ["TRAINCTL_PROGRESS"], "a") as file:
        print(json.dumps(row), file=file)
    print("step", step, "EVIL", "\\x1b[31mred \\u202e", os.environ.get("TOKEN", ""), flush=True)
for step in range(1, int(sys.argv[1])):
    report(step)
    time.sleep(0.05 * (len(sys.argv) > 2))
    if step % 10 == 0 and "BT_CHECKPOINT_DIR" in os.environ:
        folder = pathlib.Path(os.environ["BT_CHECKPOINT_DIR"], f"checkpoint-{step}")
        folder.mkdir(parents=True)
        (folder / "model.bin").write_bytes(b"x" * 1000)
print("x" * 2_000_000, flush=True)
if len(sys.argv) > 2:
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.1)
    report(55)
    time.sleep(3600)
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProjectHarness]:
    """A hostile project: a sweep that has ended, a run that failed, and one that waits for a file."""
    with project(tmp_path_factory.mktemp("demo")) as created:
        created.variables["TOKEN"] = SECRET
        gate = created.directory.parent / "gate"
        manifest = MANIFEST.replace("GATE", str(gate)).replace("EVIL", json.dumps(EVIL))
        created.write(
            {
                "trainctl.yaml": manifest,
                "src/train.py": TRAIN.replace("EVIL", EVIL),
                "weights/model.bin": b"x" * 3000,
            }
        )
        created.run("apply", "--auto-approve")
        wait_for(lambda: _is_ready(created))
        yield created
        created.run("stop", "--all", "--grace", "0")


def _is_ready(created: ProjectHarness) -> bool:
    """Whether all that the tests look for has been reported and logged."""
    jobs = {job["address"]: job["status"] for job in created.json("status")["jobs"]}
    train, _ = jobs.pop("job.train"), jobs.pop("job.check")
    has_ended = all(status.endswith(("COMPLETED", "FAILED")) for status in jobs.values())
    if not has_ended or not train.endswith("RUNNING"):
        return False
    return created.run("logs", "train", "--tail", "1").stdout.startswith("x")


@pytest.fixture
def shown(demo: ProjectHarness, browser: Browser) -> Iterator[Visit]:
    """A visit in the light, without any fault."""
    with served(site_of(demo)) as url, browser.new_context() as context:
        visited = visit(context, url)
        yield visited
        assert visited.faults == []


def count_requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count those to each node from now on."""
    made = Counter[str]()
    for name in ("call", "read"):
        original = getattr(NodeAgent, name)

        def counted(agent: NodeAgent, *words: Any, original: Any = original, **named: Any) -> Any:
            made[agent._node.id] += 1
            return original(agent, *words, **named)

        monkeypatch.setattr(NodeAgent, name, counted)
    return made


def run_of(demo: ProjectHarness, job: str) -> str:
    return str(demo.json("status", job)["run"])


def test_each_view_shows_the_project_as_text(demo: ProjectHarness, shown: Visit) -> None:
    """Markup, control characters and long lines of a run stay text; a secret is masked."""
    shown.open("")
    assert "job.broken: start command 1 of 1 exited with 3" in shown.text("#attention")
    assert "fit (3)" in shown.text("#jobs")
    assert "3 completed" in shown.text("#jobs")
    assert "lab/lab-1" in shown.text("#nodes")
    shown.follow(shown.page.get_by_role("link", name="fit", exact=True))
    assert EVIL in shown.text("#runs")
    assert shown.page.locator("#charts path.line").count() >= 3
    assert "environment_variables.LR" in shown.text("#differences")
    page = shown.open(f"runs/{run_of(demo, 'train')}")
    log = shown.text("#log")
    assert f"step 39 {EVIL} \\u001b[31mred \\u202e (redacted)" in log
    assert re.search("x… [0-9,]+ more characters", log)
    assert SECRET not in page.content()
    assert len(page.content()) < 1_000_000
    assert page.locator("figcaption").all_inner_texts()[:2] == ["<b>key</b>", "k" * 60]
    assert "weights.tiny" in shown.text("#weights")
    assert f"trainctl stop job.train --run {run_of(demo, 'train')}" in shown.text("#commands")
    ended = demo.json("status", "fit")["jobs"][0]["run"]
    shown.open(f"runs/{ended}")
    newest = shown.text("#checkpoints tbody tr:first-child").split("\t")
    assert newest[:4] == ["checkpoint-20", "0", "20", "20"]
    shown.open("nodes")
    assert "job.train run 1" in shown.text("#cached")
    assert "3.0 kB" in shown.text("#mirror")
    shown.open("plan")
    assert "No changes." in shown.text()
    assert page.title() == "Plan · demo"
    assert page.locator("main img, main script:not([type])").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phones_scroll_tables_and_not_the_page(
    demo: ProjectHarness, browser: Browser, scheme: Literal["light", "dark"]
) -> None:
    """Text has a contrast with its ground in each scheme."""
    with (
        served(site_of(demo)) as url,
        browser.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme) as context,
    ):
        shown = visit(context, url)
        for path in ("", "jobs", "jobs/fit", f"runs/{run_of(demo, 'train')}", "nodes", "plan"):
            page = shown.open(path)
            assert shown.width_beyond_window() <= 0, path
            assert page.evaluate(CONTRAST) >= 4.5, path
        assert shown.faults == []


CONTRAST = """() => {
  const light = (color) => {
    const parts = color.match(/[\\d.]+/g).slice(0, 3).map((n) => n / 255);
    const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const texts = [...document.querySelectorAll("main *")].filter((each) => each.innerText && !each.children.length);
  const lights = texts.map((each) => light(getComputedStyle(each).color));
  return Math.min(...lights.map((l) => (Math.max(l, ground) + 0.05) / (Math.min(l, ground) + 0.05)));
}"""


def test_a_visible_page_follows_a_run_and_a_hidden_one_asks_nothing(
    demo: ProjectHarness, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time passes by the page's clock; the pace of hosts is another test's."""
    monkeypatch.setattr(pages, "PACE_SECONDS", 0.0)
    with served(site_of(demo)) as url, browser.new_context() as context:
        shown = visit(context, url)
        page = shown.page
        page.clock.install()
        shown.open(f"runs/{run_of(demo, 'train')}")
        assert "step 55" not in shown.text("#log")
        (demo.directory.parent / "gate").touch()
        for _ in range(40):
            page.clock.run_for(5000)
            page.wait_for_timeout(100)
            if "step 55" in shown.text("#log") and "step 55 of 60" in shown.text("#state"):
                break
        expect(page.locator("#log")).to_contain_text("step 55")
        before = len(shown.requests)
        hide = "Object.defineProperty(document, 'hidden', {get: () => VALUE}); document.dispatchEvent(new Event('visibilitychange'))"
        page.evaluate(hide.replace("VALUE", "true"))
        page.clock.run_for(60_000)
        assert len(shown.requests) == before
        page.evaluate(
            hide.replace("VALUE", "false").replace(
                "defineProperty(document, 'hidden'", "defineProperty(Document.prototype, 'x'"
            )
        )
        assert shown.faults == []


def test_search_and_charts_move_the_log(demo: ProjectHarness, shown: Visit) -> None:
    page = shown.open(f"runs/{run_of(demo, 'train')}")
    page.get_by_label("Search").fill("step 1[0-2] ")
    page.get_by_label("Search").press("Enter")
    expect(page.locator("#log > div")).to_have_count(3)
    chart = page.locator(".chart svg[role=img]").first
    box = chart.bounding_box()
    assert box is not None
    chart.click(position={"x": box["width"] * 0.2, "y": 50})
    expect(page.locator("#log .here")).to_contain_text(re.compile("step [12]?[0-9] "))
    chart.hover(position={"x": box["width"] * 0.5, "y": 50})
    expect(page.locator(".legend output").first).to_contain_text("at step")
    assert page.locator(".chart").first.locator(".mark.checkpoint").count() == 3
    assert page.locator(".mark.retry").count() == 0
    page = shown.open(f"runs/{run_of(demo, 'broken')}")
    assert page.locator(".chart").first.locator(".mark.retry").count() == 1


def test_a_late_answer_does_not_undo_what_was_ticked(demo: ProjectHarness, shown: Visit) -> None:
    page = shown.page
    page.clock.install()
    shown.open("jobs/fit")
    late: list[Route] = []
    page.route(re.compile("jobs/fit$"), lambda route: late.append(route))
    page.clock.run_for(5000)
    wait_for(lambda: page.evaluate("1") and late)
    with page.expect_response(re.compile("jobs/fit.run=")):
        page.locator("#runs input").first.uncheck()
    expect(page.locator("#differences thead th")).to_have_count(3)
    with page.expect_response(re.compile("jobs/fit$")):
        late[0].continue_()
    page.wait_for_timeout(200)
    assert page.locator("#runs :checked").count() == 2
    assert page.locator("#differences thead th").count() == 3


def test_no_run_may_be_ticked(demo: ProjectHarness, shown: Visit) -> None:
    page = shown.open("jobs/fit")
    for ticked in (2, 1, 0):
        with page.expect_response(re.compile("jobs/fit.run=")):
            page.locator("#runs :checked").first.uncheck()
        expect(page.locator("#differences thead th")).to_have_count(ticked + 1 if ticked > 1 else 0)
        assert page.locator("#runs :checked").count() == ticked
    assert page.locator("#charts path.line").count() == 0


def test_no_state_is_changed_and_each_host_gets_one_request_in_five_seconds(
    demo: ProjectHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three pages refresh every five seconds for five minutes, by a clock that runs ahead."""
    serial = demo.json("plan")["serial"]
    site, run = site_of(demo), run_of(demo, "train")
    clock = [1000.0]
    monkeypatch.setattr("trainctl.ui.pages.time.monotonic", lambda: clock[0])
    pages = (site.start, site.nodes, lambda: run_page(site, run, QueryParams()))
    try:
        for page in pages:
            page()
        made = count_requests(monkeypatch)
        for _ in range(60):
            clock[0] += 5.0
            for page in pages:
                page()
            wait(each.running for each in site.queries._answers.values() if each.running)
    finally:
        site.close()
    assert 15 < max(made.values()) <= 60
    assert demo.json("plan")["serial"] == serial


def test_only_the_token_opens_the_pages(demo: ProjectHarness) -> None:
    """Neither another name of this host, nor another page, nor a request that writes gets an answer with data."""
    with served(site_of(demo)) as url:
        parts = urlsplit(url)
        host = parts.netloc
        token = parse_qs(parts.query)["token"][0]

        def ask(path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
            connection = http.client.HTTPConnection(host)
            connection.request(method, path, headers={"Host": host, **headers})
            response = connection.getresponse()
            response.read()
            connection.close()
            return response

        first = ask(f"/?token={token}")
        cookie = first.headers["Set-Cookie"]
        name = cookie.partition(";")[0]
        assert (first.status, first.headers["Location"]) == (303, "/")
        assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
        assert ask("/").status == 401
        assert ask("/?token=x").status == 401
        assert ask("/", Cookie=f"{name}x").status == 401
        good = ask("/", Cookie=name)
        assert good.status == 200
        policy = good.headers["Content-Security-Policy"].split("; ")
        assert policy[0] == "default-src 'none'"
        assert all(
            each.endswith(("-src 'none'", "=='", "='", " 'self'", " 'none'", " data:"))
            for each in policy
        )
        assert ask("/", "HEAD", Cookie=name).status == 200
        rebound = [ask(f"/?token={token}", Host=f"evil.example:{parts.port}", Cookie=name).status]
        rebound.append(ask("/", Host=f"127.0.0.1.evil.example:{parts.port}", Cookie=name).status)
        assert rebound == [400, 400]
        assert ask("/", Cookie=name, Origin="http://evil.example").status == 403
        assert ask("/", Cookie=name, Origin=f"http://{host}").status == 200
        written = [ask("/", method, Cookie=name).status for method in ("POST", "PUT", "DELETE")]
        assert written == [405, 405, 405]
        missing = [ask(path, Cookie=name).status for path in ("/runs/x", "/static/x", "/x")]
        assert missing == [404, 404, 404]


def test_two_thousand_runs_sort_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    with project(tmp_path) as created, ExitStack() as stack:
        run = record_runs(created, 80, 20, sweep=400)
        record_points(created, run, 3, 20_000)
        site = site_of(created)
        url = stack.enter_context(served(site))
        context = stack.enter_context(browser.new_context())
        shown = visit(context, url)
        assert shown.page.locator("#jobs tbody tr").count() == 82
        page = shown.open("jobs/sweep")
        assert page.locator("#runs tbody tr").count() == 400
        header = page.get_by_role("button", name="loss")
        header.focus()
        for order in ("ascending", "descending"):
            page.keyboard.press("Enter")
            assert page.locator("th", has=header).get_attribute("aria-sort") == order
            cells = page.locator("#runs td[data-value]:nth-child(5)").all_inner_texts()[:400]
            values = [float(text) for text in cells]
            assert values == sorted(values, reverse=order == "descending")
        page = shown.open(f"runs/{run}")
        assert page.locator(".chart path.line").count() >= 3
        lines = page.evaluate("JSON.parse(document.getElementById('data').textContent).lines")
        sizes = [len(line["v"]) for line in lines]
        assert max(sizes) <= 2 * 600 + 2
        assert shown.faults == []


def test_pages_as_files_are_the_same_without_a_server(
    demo: ProjectHarness, browser: Browser, tmp_path: Path
) -> None:
    done = demo.run("ui", "--out", str(tmp_path / "site"))
    assert re.fullmatch(r"Wrote \d+ pages to .*\.\n", done.stdout)
    with browser.new_context() as context:
        shown = Visit(context.new_page(), (tmp_path / "site").as_uri())
        shown.page.on("console", lambda message: shown.faults.append(message.text))
        page = shown.open("index.html")
        shown.follow(page.get_by_role("link", name="fit", exact=True))
        assert page.locator("#charts path.line").count() >= 3
        lines = page.locator(".chart").first.locator("svg[role=img] path.line")
        count = lines.count()
        page.locator("#runs input").first.uncheck()
        expect(lines).to_have_count(count - 1)
        shown.follow(page.get_by_role("link", name=re.compile(r"1 \(")).first)
        assert "step 29" in shown.text("#log")
        shown.follow(page.get_by_role("link", name="Plan"))
        assert "No changes." in shown.text()
        assert shown.faults == []


def test_the_command_prints_the_url_and_ends_with_ctrl_c(demo: ProjectHarness) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "in use" in demo.run("ui", "--port", port, code=None).stderr
    process = demo.start("ui", "--port", port)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert urlsplit(url).port == int(port)
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request("GET", "/?" + urlsplit(url).query)
    status = connection.getresponse().status
    connection.close()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert (status, process.returncode) == (303, 0)


def test_without_javascript_tables_and_search_work(demo: ProjectHarness, browser: Browser) -> None:
    with (
        served(site_of(demo)) as url,
        browser.new_context(java_script_enabled=False) as context,
    ):
        shown = visit(context, url)
        page = shown.open("jobs/fit")
        page.locator("#runs input").first.uncheck()
        shown.follow(page.get_by_role("button", name="Compare"))
        assert page.locator("#differences thead th").count() == 3
        shown.open(f"runs/{run_of(demo, 'train')}?q=step+11")
        assert page.locator("#log > div").count() == 1
        assert shown.faults == []


def test_evaluations_stand_beside_their_checkpoints(demo: ProjectHarness, browser: Browser) -> None:
    def is_evaluated() -> bool:
        rows = demo.json("status", "check")["evaluations"] or ()
        return any(row["status"] == "completed" for row in rows)

    wait_for(is_evaluated, 60)
    with served(site_of(demo)) as url, browser.new_context() as context:
        shown = visit(context, url)
        shown.open(f"runs/{run_of(demo, 'train')}")
        assert "check.score" in shown.text("#checkpoints thead")
        assert "\t0.75\t" in shown.text("#checkpoints tbody")
        assert shown.faults == []
