"""What a job's first command needs of its host, read from the command and the code."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import by_text
from trainctl.inputs.host_requirements import HostRequirements, host_requirements
from trainctl.model.specs.job_spec import JobSpec

FILES = {"train.py": "-", "run.sh": "x", "noexec.sh": "-", "sub/run.py": "-"}


def needs(*commands: str, **more: Any) -> HostRequirements:
    """Of a job with the code above."""
    runtime = {"start_commands": commands, "environment_variables": more.pop("variables", {})}
    return host_requirements(JobSpec.from_attributes({"runtime": runtime, **more}), FILES)


@pytest.mark.parametrize(("command", "program"), by_text("jobs/programs"))
def test_the_program_of_the_first_command(command: str, program: str) -> None:
    """It is known if it is plainly written; whatever can't be read for certain is not reported."""
    assert needs(command) == HostRequirements(program)


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python gone.py", "gone.py"),
        ("sh sub/gone.sh", "sub/gone.sh"),
        ("./gone.sh", "gone.sh"),
        ("./noexec.sh", "noexec.sh"),
    ],
)
def test_a_script_that_is_not_in_the_code(command: str, script: str) -> None:
    """It is named, as is one that may not be executed."""
    assert script in needs(command).problem
