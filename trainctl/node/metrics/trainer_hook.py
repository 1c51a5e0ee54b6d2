"""What the ``Trainer`` of transformers logs, reported from inside its process.

Its own reports, see ``progress``, are one in 5 s, with a step of up to 5 s later. A directory first in PYTHONPATH has this
as ``sitecustomize``, as that of OpenTelemetry; whatever fails in it, the job runs as without it.
"""

from __future__ import annotations

FILE = "python/sitecustomize.py"
"""Its path below the directory of the run's progress."""

SOURCE = b'''\
"""Reports what transformers' Trainer logs to trainctl; imports the sitecustomize that this one hides."""
import os
import sys


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
                if hasattr(module, "DefaultFlowCallback"):
                    module.DefaultFlowCallback.on_log = _on_log

            spec.loader.exec_module = exec_module
        except AttributeError:  # not found, or by a loader of another kind
            pass
        return spec


def _on_log(self, args, state, control, logs=None, **more):
    try:
        import json
        import time

        if state.is_world_process_zero and logs:
            row = {"step": state.global_step, "total": state.max_steps, "time": time.time()}
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
