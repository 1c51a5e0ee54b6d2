"""What the ``Trainer`` of transformers logs, and its step every few seconds, reported from inside its process.

A directory first in PYTHONPATH has this as ``sitecustomize``, as that of OpenTelemetry; whatever fails in it, the job
runs as without it.
"""

from __future__ import annotations

FILE = "python/sitecustomize.py"
"""Its path below the directory of the run's progress."""

SOURCE = b'''\
"""Reports what transformers' Trainer logs to trainctl; imports the sitecustomize that this one hides."""
import os
import sys
import time

_SECONDS = 5.0
_reported = [0.0]


class _Finder(object):
    def find_spec(self, name, path=None, target=None):
        if name != "transformers.trainer_callback":
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path)
        try:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                callback = getattr(module, "DefaultFlowCallback", None)
                if hasattr(callback, "on_step_end"):
                    _add_reports(callback)

            spec.loader.exec_module = exec_module
        except AttributeError:  # not found, or by a loader of another kind
            pass
        return spec


def _add_reports(callback):
    os.environ["DISABLE_KUBEFLOW_INTEGRATION"] = "TRUE"  # it would report the same again
    on_step_end = callback.on_step_end

    def report_step(self, args, state, control, **more):
        if time.time() - _reported[0] > _SECONDS:
            _report(state, {})
        return on_step_end(self, args, state, control, **more)

    callback.on_step_end = report_step
    callback.on_log = lambda self, args, state, control, logs=None, **more: _report(state, logs or {})


def _report(state, logs):
    try:
        import json

        if not state.is_world_process_zero:
            return
        _reported[0] = time.time()
        row = {"step": state.global_step, "total": state.max_steps, "time": _reported[0]}
        for name, value in logs.items():
            if not isinstance(value, (bool, str)) and name not in row:
                try:
                    row[name] = float(value)
                except (TypeError, ValueError):
                    pass
        with open(os.environ["TRAINCTL_PROGRESS"], "a") as stream:
            stream.write(json.dumps(row) + "\\n")
    except Exception:
        pass


if sys.version_info[0] > 2:
    sys.meta_path.insert(0, _Finder())
_directory = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if path != _directory]
_own = sys.modules.pop(__name__, None)
try:
    import sitecustomize
except ImportError:
    sys.modules[__name__] = _own
'''
