"""Runs an evaluator inside a sandbox of its own, in which nothing of the submission is, and says what it printed.

Stdin and stdout of this process are the line to the submission. Each process of the evaluator that asks something of the
submission comes by a socket of ours; they are served in turn.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections import deque
from contextlib import suppress

from .marks import ENDED, SERVED_BY, UNSENDABLE


def main() -> None:
    most, *script = sys.argv[1:]
    server = socket.socket(socket.AF_UNIX)
    name = f"palaestra-{os.getpid()}"
    server.bind(f"\0{name}")
    server.listen(512)
    process = subprocess.Popen(
        [sys.executable, "-B", *script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        env={**os.environ, SERVED_BY: name, "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{os.getcwd()}"},
    )  # fmt: skip
    said = Runner(server, process, int(most)).until_its_end()
    code = process.wait()
    write(1, ENDED + json.dumps(said.decode("utf-8", "replace")).encode())
    os._exit(code if code >= 0 else 128 - code)


class Runner:
    """Keeps what an evaluator prints, the last bytes of it, and passes on what it asks and is answered."""

    def __init__(self, server: socket.socket, process: subprocess.Popen[bytes], most: int) -> None:
        assert process.stdout is not None
        self.server, self.printed, self.alive = server, process.stdout.fileno(), os.pidfd_open(process.pid)
        self.kept, self.most, self.answers = bytearray(), most, bytearray()
        self.clients: dict[int, socket.socket] = {}
        self.requests: dict[int, bytearray] = {}
        self.waiting: deque[socket.socket] = deque()
        """Who is to be answered, in order."""
        self.poll = select.poll()
        for file in (0, self.printed, self.alive, server.fileno()):
            self.poll.register(file, select.POLLIN)
        os.set_blocking(self.printed, False)

    def until_its_end(self) -> bytes:
        """The end of what it printed. Other processes that could still print are not waited for."""
        while True:
            ready = [file for file, _ in self.poll.poll()]
            for file in ready:
                if file in self.clients:
                    self._ask(file)
                elif file == 0:
                    self._answer()
                elif file == self.server.fileno():
                    client, _ = self.server.accept()
                    self.clients[client.fileno()], self.requests[client.fileno()] = client, bytearray()
                    self.poll.register(client, select.POLLIN)
            more = self.printed in ready and self._keep()
            if self.alive in ready and not more:
                return bytes(self.kept)

    def _keep(self) -> bool:
        try:
            data = os.read(self.printed, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self.poll.unregister(self.printed)
        self.kept += data
        del self.kept[: -self.most]
        return bool(data)

    def _ask(self, file: int) -> None:
        client, request = self.clients[file], self.requests[file]
        try:
            data = client.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            self.poll.unregister(file)
            del self.clients[file], self.requests[file]
            if client not in self.waiting:
                client.close()
            return
        request += data
        if data.endswith(b"\n"):  # It waits for the answer before it asks again.
            write(1, bytes(request[:-1]))
            if request[:1] == UNSENDABLE:
                os._exit(1)
            request.clear()
            self.waiting.append(client)

    def _answer(self) -> None:
        data = os.read(0, 1 << 18)
        if not data:  # Nobody is interested any more.
            os._exit(1)
        self.answers += data
        while self.waiting and b"\n" in data:
            line, _, rest = self.answers.partition(b"\n")
            self.answers, data, client = rest, bytes(rest), self.waiting.popleft()
            with suppress(OSError):
                client.sendall(line + b"\n")


def write(file: int, line: bytes) -> None:
    line += b"\n"
    while line:
        line = line[os.write(file, line) :]


if __name__ == "__main__":
    main()
