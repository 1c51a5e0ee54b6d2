"""Print the GPUs of the machine."""

import shutil
import subprocess

if shutil.which("nvidia-smi"):
    print(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout)
else:
    print("no GPUs")
