"""Training progress that jobs report."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.node_program.nodes import NodeHarness, wait_for
from trainctl.node.metrics import trainer_hook
from trainctl.node.metrics.progress import read_progress
from trainctl.node.runs.points import begin_attempt, update_results
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
assert post(token, 2**18 + 1, metrics=[{"name": "x" * 2**18, "value": "1"}]) == 400
assert post(token, progressPercentage=0, metrics=[{"name": "total_steps", "value": "200"}]) == 200
metrics = {"loss": "0.25", "note": "text", "current_step": "50", "total_steps": "200", "lr": "nan"}
metrics = [{"name": name, "value": value} for name, value in metrics.items()]
assert post(token, progressPercentage=25, estimatedRemainingSeconds=600, metrics=metrics) == 200
metrics += [{"name": "eval_loss", "value": "0.5"}, {"name": "current_step", "value": "100"}]
assert post(token, progressPercentage=50, estimatedRemainingSeconds=600, metrics=metrics) == 200
with open(os.environ["TRAINCTL_PROGRESS"], "a") as lines:
    print(json.dumps({"step": 110, "loss": 0.125}), file=lines)
metrics = [{"name": "loss", "value": "0.2"}, {"name": "current_step", "value": "150"}]
assert post(token, progressPercentage=75, metrics=metrics) == 200
PYTHON
"""
"""Posts as KEP-2779 describes."""


def progress(node: NodeHarness) -> Any:
    return node.call("status", {"keys": ["run-1"]})["runs"]["run-1"]["progress"]


def test_a_job_posts_by_the_protocol_of_kubeflow(node: NodeHarness) -> None:
    """Also one that appends lines, too."""
    node.start(node.spec(POST, "sleep 60"))
    result = wait_for(lambda: (progress(node) or {}).get("step") == 150 and progress(node))

    assert (result["step"], result["total"], result["loss"]) == (150, 200, 0.2)
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


def reported(run: NodeRun, *rows: Any) -> None:
    with run.progress_lines.open("a") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def summary(results: Any) -> dict[str, list[tuple[float, int | None]]]:
    """Last, lowest and highest of each key, each with its step."""
    points = ("last", "min", "max")
    return {
        key: [(result[point]["value"], result[point]["step"]) for point in points]
        for key, result in results.items()
    }


@pytest.fixture
def run(tmp_path: Path) -> NodeRun:
    run = NodeRun(Layout(str(tmp_path)), "run-1")
    run.progress.mkdir(parents=True)
    return run


def test_results_are_last_values_and_extremes(run: NodeRun) -> None:
    """Lines are read once, in whatever pieces they come; a line without step is of the step before."""
    reported(run, {"epoch": 0}, {"step": 1, "loss": 3, "total": 9})
    assert summary(update_results(run)) == {
        "epoch": [(0, None)] * 3,
        "loss": [(3, 1)] * 3,
    }
    reported(run, {"step": 2, "loss": 1}, {"val_loss": 0.5}, {"step": 3, "loss": 2, "no": "text"})
    with run.progress_lines.open("a") as stream:
        stream.write('{"step": 4, "loss": ')
    assert summary(update_results(run))["loss"] == [(2, 3), (1, 2), (3, 1)]
    with run.progress_lines.open("a") as stream:
        stream.write("7}")
    results = update_results(run, is_over=True)
    assert summary(results)["loss"] == [(7, 4), (1, 2), (7, 4)]
    assert summary(results)["val_loss"] == [(0.5, 2)] * 3
    assert summary(update_results(run)) == summary(results)


def test_results_of_an_earlier_attempt_are_kept(run: NodeRun) -> None:
    """Also if its supervisor was killed before it emptied the file."""
    reported(run, {"step": 1, "loss": 3}, {"step": 2, "loss": 1})
    begin_attempt(run)
    assert run.progress_lines.read_bytes() == b""
    reported(run, {"step": 1, "loss": 2})
    assert summary(update_results(run))["loss"] == [(2, 1), (1, 2), (3, 1)]
    run.progress_lines.unlink()
    assert summary(update_results(run))["loss"] == [(2, 1), (1, 2), (3, 1)]


def test_results_are_bounded(run: NodeRun) -> None:
    with run.progress_lines.open("w") as stream:
        stream.write(json.dumps({"x" * 2**20: 1}) + "\n")
    reported(run, *({f"key-{number}" + "y" * 100: number} for number in range(300)))
    results = update_results(run)
    assert len(results) == 100
    assert max(map(len, results)) == 64


def test_an_ended_run_has_its_results(node: NodeHarness) -> None:
    lines = ('{"step": 3, "loss": 2.5}', '{"step": 4, "loss": 2.0, "val_loss": 1}')
    node.start(node.spec(*(f"echo '{line}' >>$TRAINCTL_PROGRESS" for line in lines)))
    assert summary(node.ended()["results"]) == {
        "loss": [(2.0, 4), (2.0, 4), (2.5, 3)],
        "val_loss": [(1, 4)] * 3,
    }


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


def test_the_hook_of_transformers_breaks_no_import(tmp_path: Path) -> None:
    """Not of a version without its class, nor from an archive, whose modules have one loader; errors stay the same."""
    (tmp_path / "sitecustomize.py").write_bytes(trainer_hook.SOURCE)
    archive = tmp_path / "packages.zip"
    with zipfile.ZipFile(archive, "w") as packages:
        for name in ("__init__", "trainer_callback", "other"):
            packages.writestr(f"transformers/{name}.py", "")
    code = "import transformers.trainer_callback, transformers.other"
    for paths, error in ((archive, ""), (tmp_path / "empty", "ModuleNotFoundError")):
        (tmp_path / "empty/transformers").mkdir(parents=True, exist_ok=True)
        environment = {"PYTHONPATH": f"{tmp_path}:{paths}"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)  # fmt: skip
        assert done.stderr.rstrip().rpartition("\n")[2].partition(":")[0] == error


TRAINER = """
class DefaultFlowCallback:
    def on_step_end(self, args, state, control, **more):
        return "control"
"""
CALLS = """\
import sys, time
from types import SimpleNamespace
from transformers.trainer_callback import DefaultFlowCallback

now, trainer = [1.7e9], DefaultFlowCallback()
time.time = lambda: now[0]
for step in range(1, 5):
    now[0] += 2
    state = SimpleNamespace(global_step=step, max_steps=9, is_world_process_zero=sys.argv[1] == "0")
    assert trainer.on_step_end(None, state, None, model=1) == "control"
trainer.on_log(None, state, None, logs={"loss": "0.5", "eval_loss": 0.25, "step": 7, "note": "text"})
"""


def test_the_hook_reports_logs_and_a_step_every_few_seconds(tmp_path: Path) -> None:
    """Of the first process only."""
    (tmp_path / "sitecustomize.py").write_bytes(trainer_hook.SOURCE)
    (tmp_path / "own/transformers").mkdir(parents=True)
    (tmp_path / "own/transformers/trainer_callback.py").write_text(TRAINER)
    environment = {"PYTHONPATH": f"{tmp_path}:{tmp_path}/own", "TRAINCTL_PROGRESS": f"{tmp_path}/l"}
    for rank in ("1", "0"):
        subprocess.run([sys.executable, "-c", CALLS, rank], env=environment, check=True)
    rows = [json.loads(line) for line in (tmp_path / "l").read_text().splitlines()]
    assert [(row.pop("step"), row.pop("total"), row.pop("time") - 1.7e9) for row in rows] == [
        (1, 9, 2),
        (4, 9, 8),
        (4, 9, 8),
    ]
    assert rows == [{}, {}, {"eval_loss": 0.25}]


def test_python_2_has_no_hook(tmp_path: Path) -> None:
    """It calls other methods of ``sys.meta_path``, so that each import would fail."""
    (tmp_path / "sitecustomize.py").write_bytes(trainer_hook.SOURCE)
    code = f"import runpy, sys; sys.version_info = (2, 7); runpy.run_path('{tmp_path}/sitecustomize.py'); print(sys.meta_path)"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "._Finder" not in done.stdout
