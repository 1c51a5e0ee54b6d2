#!/bin/sh
# paramiko reads ~/.ssh/config otherwise than OpenSSH does, without an error:
# - a comment behind a value is part of the value ("User bob # admin");
# - criteria of Match that it doesn't know count as true, so that one host gets the settings of another;
# - Include is a key like any other: hosts of included files are unknown;
# - "Match final all", which distributions ship, is refused with the whole file.
# It matters for tools that start training on many hosts from a machine or container without ssh: they log in
# as another user, or to another port, than `ssh HOST` of the same person does.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q paramiko==5.1.0
cd "$work"
printf 'Host new\n  User eve\n' > more
cat > config <<END
Include $work/more
Host gpu
  User bob # admin
Match originalhost gpu tagged other
  Port 7
END
"$work/venv/bin/python" - <<'PY'
import sys

import paramiko

print("paramiko", paramiko.__version__)
config = paramiko.SSHConfig.from_path("config")
gpu, new = config.lookup("gpu"), config.lookup("new")
try:
    paramiko.SSHConfig.from_text("Match final all\n  Port 9\n")
    final = "read"
except paramiko.ConfigParseError as error:
    final = str(error)
seen = {
    "user of 'User bob # admin'": gpu["user"],
    "port by 'Match originalhost gpu tagged other'": gpu.get("port"),
    "user of an included host": new.get("user"),
    "Match final all": final,
}
for what, value in seen.items():
    print(f"{what}: {value!r}")
expected = ["bob # admin", "7", None, "Match does not allow 'all' mixed with anything but 'canonical'"]
sys.exit(list(seen.values()) != expected)
PY
if command -v ssh >/dev/null; then
    ssh -V
    printf 'Host gpu\n  User bob # admin\nMatch final all\n  Port 9\n' > own
    ssh -G -F own gpu | grep -E '^(user|port) '
fi
