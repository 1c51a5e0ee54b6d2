"""What paramiko sends on a channel, and in which order."""

from __future__ import annotations

import threading

import paramiko

from trainctl_ssh.paramiko_connection import end_input

EOF, CLOSE = 96, 97
"""Types of messages, RFC 4254."""


class _Recorded:
    """A transport that takes a while to send EOF; meanwhile the host's CLOSE arrives."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self.sent: list[int] = []
        self._closed_there = threading.Thread(target=channel._handle_close, args=(None,))  # type: ignore[attr-defined]

    def _send_user_message(self, message: paramiko.Message) -> None:
        kind = message.asbytes()[0]
        if kind == EOF:
            self._closed_there.start()
            self._closed_there.join(0.2)
        self.sent.append(kind)

    def _unlink_channel(self, number: int) -> None:
        """Forget the channel."""

    def wait(self) -> None:
        """Until all was sent."""
        self._closed_there.join()


def test_the_end_of_input_is_never_sent_after_the_close() -> None:
    """sshd ends the whole connection when it gets something for a channel that is closed."""
    channel = paramiko.Channel(1)
    transport = _Recorded(channel)
    channel.transport, channel.active = transport, True  # type: ignore[assignment]
    channel.remote_chanid = 1
    end_input(channel)
    transport.wait()

    assert transport.sent == [EOF, CLOSE]
