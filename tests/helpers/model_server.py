"""A process of `palaestra serve` on a port of its own, which can be killed and started again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack


class ModelServer:
    """Serves `nano` as soon as it is started.

    Arguments:
        stack: kills the process when it is closed.
        options: further options of the command.
    """

    def __init__(self, stack: ExitStack, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.root, self.options = f"http://127.0.0.1:{self.port}", options
        self.url = f"{self.root}/v1"
        self.process: subprocess.Popen[bytes] | None = None
        stack.callback(self.kill)

    def start(self) -> None:
        command = [sys.executable, "-m", "palaestra", "serve", "--model", "nano", "--port", str(self.port)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [*command, *self.options], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def wait(self) -> None:
        """Wait until the model is loaded."""
        deadline = time.monotonic() + 300
        while True:
            try:
                urllib.request.urlopen(f"{self.root}/health", timeout=300).close()
                return
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
