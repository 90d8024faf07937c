# SPDX-License-Identifier: Apache-2.0
"""A client whose data the server no longer reads."""

import fcntl
import socket
import struct
import termios
from pathlib import Path

from tests.waits import linger, until

_FEW_BYTES = 16_384  # far less than a receive window: what follows, the end too, still arrives
_MOST_BYTES = 16_000_000


async def push_until_unread(client: socket.socket, data: bytes) -> None:
    """Sends `data` again and again until the server leaves some of it unread.

    All of it has then arrived, and so will the client's end. A client that filled the server's receive window would
    be gone without a word: its end waits behind its data until the server reads on. That is a limit of TCP.
    """
    for _ in range(_MOST_BYTES // len(data)):
        client.sendall(data)
        await until(lambda: not _count_in_flight(client), "the arrival of what was sent")
        if _count_unread(client) > _FEW_BYTES:
            await linger()
            if _count_unread(client) > _FEW_BYTES:
                return
    raise AssertionError(f"the server has read {_MOST_BYTES} bytes")


def _count_in_flight(client: socket.socket) -> int:
    """Bytes that the server's system has not acknowledged."""
    (count,) = struct.unpack("i", fcntl.ioctl(client, termios.TIOCOUTQ, bytes(4)))
    return int(count)


def _count_unread(client: socket.socket) -> int:
    """Bytes that wait on the server's side of the connection."""
    ends = [f":{end[1]:04X}" for end in (client.getpeername(), client.getsockname())]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if [fields[1][-5:], fields[2][-5:]] == ends:
            return int(fields[4].partition(":")[2], 16)
    raise AssertionError("the server has no such connection")
