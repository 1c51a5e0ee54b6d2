#!/bin/sh
# torchrun applies --shutdown-timeout (TORCH_ELASTIC_SHUTDOWN_TIMEOUT) to signals, but not to failed workers.
#
# PyTorch 2.12 made the 30 s between SIGTERM and SIGKILL configurable. torchrun uses the value when it
# receives a signal. When a worker fails, the other workers still get 30 s.
# Why it matters: with a timeout of 5 s, a worker that hangs in a collective keeps its GPU for 30 s. With
# 300 s for saving, the checkpoints of the remaining workers are cut off after 30 s.
#
# Exits with 1 if the behaviour has changed. Takes 40 s after the installation of PyTorch.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 numpy
cat >"$work/train.py" <<'PYTHON'
import os, signal, sys, time

if os.environ["LOCAL_RANK"] == "1":
    time.sleep(2)
    sys.exit(1)
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # like a handler that waits for a collective
time.sleep(300)
PYTHON
cd "$work"
"$work/venv/bin/python" -c 'import torch; print("torch", torch.__version__)'
begin=$(date +%s)
"$work/venv/bin/torchrun" --standalone --nproc-per-node 2 --shutdown-timeout 5 train.py >log 2>&1 || true
seconds=$(($(date +%s) - begin))
grep -o 'Sending process.*\|Unable to shutdown.*' log
echo "--shutdown-timeout 5: torchrun ended after $seconds s"
if [ "$seconds" -lt 30 ]; then
    echo "changed: the other worker was killed earlier"
    exit 1
fi
echo "as found: the other worker got 30 s instead of 5 s"
