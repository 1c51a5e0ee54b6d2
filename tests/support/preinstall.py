"""Installs what takes tests long to install, so that no test waits for it: ``python -m tests.support.preinstall``.

What can't be had here is no error: the tests that need it say so. The long tier's tests install PyTorch themselves.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.support.machines.apptainer import apptainer_program
from tests.support.machines.containers import busybox_archive
from tests.support.servers.clouds import azurite_program

if __name__ == "__main__":
    for install in (busybox_archive, azurite_program, apptainer_program):
        with suppress(pytest.skip.Exception):
            install()
