#!/bin/sh
# safetensors writes through a hidden temporary file of full size next to the target, without fsync, and renames it.
#
# Two consequences for training infrastructure:
# - A save that is killed (preemption, OOM) leaves `.tmp` and six characters in the checkpoint's directory, as large as
#   the model. Uploaders, mirrors and rsync copy it, and nothing ever removes it.
# - The new file has mode 0600, whatever the umask and the mode of the file that it replaces: in a directory that a group
#   shares, the next save makes the weights unreadable for everybody else.
#
# Exits with 1 if safetensors no longer does this.
set -eu
place=$(mktemp -d); trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q safetensors==0.8.0 numpy==2.3.5
cat > "$place/save.py" <<'PYTHON'
import os, pathlib, signal, subprocess, sys, time
from importlib.metadata import version

place = pathlib.Path(sys.argv[1])
SAVE = "import numpy, sys; from safetensors.numpy import save_file; save_file({'w': numpy.zeros(int(sys.argv[2]), 'u1')}, sys.argv[1])"
SIZE = 512 * 2**20

print("safetensors", version("safetensors"))
os.umask(0o022)
target = place / "model.safetensors"
target.touch(0o644)
subprocess.run([sys.executable, "-c", SAVE, target, "10"], check=True)
mode = oct(target.stat().st_mode & 0o777)
print("mode of a replaced file: 0o644, then", mode)

left = []
for _ in range(5):
    saving = subprocess.Popen([sys.executable, "-c", SAVE, target, str(SIZE)])
    while saving.poll() is None and not left:
        left = list(place.glob(".tmp??????"))
    saving.send_signal(signal.SIGKILL)
    saving.wait()
    left = list(place.glob(".tmp??????"))
    if left:
        break
sizes = [path.stat().st_size for path in left]
print("left by a killed save of", SIZE, "bytes:", [path.name for path in left], sizes)
sys.exit(0 if mode == "0o600" and sizes and sizes[0] >= SIZE else 1)
PYTHON
"$place/venv/bin/python" "$place/save.py" "$place"
