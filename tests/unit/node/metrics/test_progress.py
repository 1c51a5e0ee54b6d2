"""Training progress that jobs report."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.node_program.nodes import NodeHarness, wait_for
from trainctl.node.metrics.progress import read_progress
from trainctl.node.runs.record import NodeRun
from trainctl.node.system.layout import Layout

pytestmark = pytest.mark.integration

POST = """\
python3 - <<'PYTHON'
import json, os, ssl, urllib.error, urllib.request

def post(token, length=0, **status):
    url, ca = os.environ["KUBEFLOW_TRAINER_STATUS_URL"], os.environ["KUBEFLOW_TRAINER_STATUS_CA_CERT"]
    body = json.dumps({"trainerStatus": status}).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Length": str(length or len(body))}
    request = urllib.request.Request(url, body, headers, method="POST")
    context = ssl.create_default_context(cafile=ca)
    try:
        return urllib.request.urlopen(request, timeout=5, context=context).status
    except urllib.error.HTTPError as error:
        return error.code

token = open(os.environ["KUBEFLOW_TRAINER_STATUS_TOKEN"]).read()
assert open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read() == token
assert post("another", progressPercentage=99) == 401
assert post(token, metrics=5) == 400
assert post(token, 2**18 + 1, metrics=[]) == 413
assert post(token, progressPercentage=0, metrics=[{"name": "total_steps", "value": "200"}]) == 200
metrics = {"loss": "0.25", "note": "text", "current_step": "50", "total_steps": "200", "lr": "nan"}
metrics = [{"name": name, "value": value} for name, value in metrics.items()]
assert post(token, progressPercentage=25, estimatedRemainingSeconds=600, metrics=metrics) == 200
metrics += [{"name": "current_step", "value": "100"}]
assert post(token, progressPercentage=50, estimatedRemainingSeconds=600, metrics=metrics) == 200
PYTHON
"""
"""Posts as KEP-2779 describes."""


def progress(node: NodeHarness) -> Any:
    return node.call("status", {"keys": ["run-1"]})["runs"]["run-1"]["progress"]


def test_a_job_posts_by_the_protocol_of_kubeflow(node: NodeHarness) -> None:
    node.start(node.spec(POST, "sleep 60"))
    result = wait_for(lambda: (progress(node) or {}).get("step") == 100 and progress(node))

    assert (result["step"], result["total"], result["loss"]) == (100, 200, 0.25)
    assert 0 <= result["remaining_seconds"] < 500  # by steps, not the 600 s of the report


@pytest.mark.parametrize("case", cases("node/time_left"))
def test_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Any) -> None:
    run = NodeRun(Layout(str(tmp_path)), "run-1")
    run.progress.mkdir(parents=True)
    run.write(case.get("record", {}))
    values = {"total": 200, **case.get("reported", {})}
    lines = [json.dumps({"step": step, **values}) for step in (50, 100)]
    run.progress_lines.write_text("\n".join(lines))
    at = run.progress_lines.stat().st_mtime
    monkeypatch.setattr(time, "time", lambda: at)
    progress: Any = read_progress(run, at - 100)
    assert progress["remaining_seconds"] == pytest.approx(case["left"])


def test_lines_without_step_and_loss_are_no_progress(node: NodeHarness) -> None:
    node.run("""echo '{"total": 10}' >>$TRAINCTL_PROGRESS""")

    assert progress(node) is None


def test_a_job_appends_lines_of_which_invalid_ones_are_ignored(node: NodeHarness) -> None:
    lines = ('{"step": 3, "total": 10}', '{"loss": 2.5, "step": "4"}', "no", "[1]", '{"loss": NaN}')
    node.start(node.spec(*(f"echo '{line}' >>$TRAINCTL_PROGRESS" for line in lines)))
    node.ended()
    result = progress(node)

    assert (result["step"], result["total"], result["loss"]) == (3, 10, 2.5)
    assert result["remaining_seconds"] is None
    assert node.call("metrics", {"key": "run-1"})["samples"][-1]["progress"]["loss"] == 2.5
