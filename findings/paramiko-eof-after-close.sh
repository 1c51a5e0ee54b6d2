#!/bin/sh
# paramiko can send EOF on a channel after its CLOSE: Channel.shutdown_write marks EOF as sent with the channel's
# lock held, and sends it after it released the lock. If the program on the other side ends in between, the thread of
# the transport answers its CLOSE first. RFC 4254, 5.3: the number of the channel is free for another one then.
# OpenSSH's sshd (seen with 9.2) answers "ieof packet referred to nonexistent channel" and ends the connection, with
# all programs that run over it; on a busy machine that happened once in some 60 short programs.
# It matters for tools that run many programs over one connection to a training host, each with an end of its input.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q paramiko==5.1.0
cd "$work"
"$work/venv/bin/python" - <<'PY'
import socket
import sys
import threading
import time

import paramiko

print("paramiko", paramiko.__version__)
EOF, CLOSE = 96, 97
sent = []


class Host(paramiko.ServerInterface):
    """Its programs end as soon as they are started."""

    def check_auth_none(self, username):
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind, number):
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel, command):
        threading.Timer(0.5, channel.close).start()
        return True


class Busy(paramiko.Transport):
    """A client on a busy machine: a second passes before EOF is sent."""

    def _send_user_message(self, message):
        kind = message.asbytes()[0]
        if kind == EOF:
            time.sleep(1)
        if kind in (EOF, CLOSE):
            sent.append({EOF: "EOF", CLOSE: "CLOSE"}[kind])
        super()._send_user_message(message)


here, there = socket.socketpair()
host = paramiko.Transport(there)
host.add_server_key(paramiko.ECDSAKey.generate())
host.start_server(event=threading.Event(), server=Host())
client = Busy(here)
client.start_client(timeout=30)
client.auth_none("somebody")
channel = client.open_session(timeout=30)
channel.exec_command("true")
channel.shutdown_write()
time.sleep(1)
client.close()
host.close()
print("sent on the channel:", ", ".join(sent))
sys.exit(sent != ["CLOSE", "EOF"])
PY
