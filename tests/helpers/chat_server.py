"""A small server with OpenAI's chat API, scripted answers and scripted faults."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """What the server does with one call.

    Arguments:
        text: what the model says; its characters are its tokens.
        raw: a body in place of the chat completion.
        cut: drop the connection after so many bytes of the body; 0 before the first.
        stall: say nothing more after so many bytes of the body, and keep the connection.
        delay: seconds of thought.
        endless: send a body that never ends.
        choice, message: further fields of the choice and of its message.
    """

    text: str | None = "ok"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    cut: int | None = None
    stall: int | None = None
    delay: float = 0.0
    finish: str = "stop"
    usage: bool = True
    endless: bool = False
    choice: Mapping[str, Any] = field(default_factory=dict)
    message: Mapping[str, Any] = field(default_factory=dict)


def calling(name: str, arguments: str, id: str = "call_a", text: str | None = None) -> Reply:
    """An answer that calls a tool."""
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return Reply(text, finish="tool_calls", message={"tool_calls": [call]})


def error(status: int, message: str = "no", code: str = "", param: str = "", **headers: str) -> Reply:
    """An answer with OpenAI's error object; `retry_after` becomes the header `retry-after`."""
    body = json.dumps({"error": {"message": message, "type": "e", "code": code or None, "param": param or None}})
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status=status, raw=body.encode(), headers=named)


@dataclass(frozen=True)
class Call:
    """One call that reached the server."""

    body: dict[str, Any]
    path: str
    headers: Mapping[str, str]
    at: float

    @property
    def asked(self) -> str:
        """The text of the last message."""
        content = self.body["messages"][-1]["content"] or ""
        return content if isinstance(content, str) else content[0]["text"]


Script = Callable[[Call, int], Reply]


class Server(ThreadingHTTPServer):
    """Listens on a free port of this machine while it is used as a context.

    Arguments:
        script: what to do, by the call and how often its last message was asked before.
        port: the port; 0 for a free one.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, script: Script, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.script = script
        self.calls: list[Call] = []
        self.times: Counter[str] = Counter()
        self.prompt_tokens = self.completion_tokens = self.under_way = self.most_under_way = 0
        self.lock, self.over = threading.Lock(), threading.Event()
        self.broken: list[Exception] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    @property
    def model(self) -> str:
        """The name under which an engine finds the model here."""
        return f"{self.url}#scripted"

    def __enter__(self) -> Server:
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.shutdown()
        self.thread.join()
        self.server_close()
        if self.broken:
            raise self.broken[0]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away, or is killed, is no error of ours."""


def count_tokens(body: Mapping[str, Any]) -> int:
    """The characters of the conversation stand for tokens."""
    return sum(len(m["content"] or "") if not isinstance(m["content"], list) else 100 for m in body["messages"])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        server, at = self.server, time.monotonic()
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        call = Call(body, self.path, {name.lower(): value for name, value in self.headers.items()}, at)
        with server.lock:
            before = server.times[call.asked]
            server.times[call.asked] += 1
            server.calls.append(call)
            server.under_way += 1
            server.most_under_way = max(server.most_under_way, server.under_way)
        try:
            try:
                reply = server.script(call, before)
            except Exception as broken:
                server.broken.append(broken)
                reply = error(401, f"the script of the test broke: {broken!r}")
            if reply.delay:
                server.over.wait(reply.delay)
        finally:
            with server.lock:
                server.under_way -= 1
        self._send(reply, reply.raw if reply.raw is not None else self._completion(body, reply))

    def _completion(self, body: dict[str, Any], reply: Reply) -> bytes:
        usage = {"prompt_tokens": count_tokens(body), "completion_tokens": len(reply.text or "")}
        usage["total_tokens"] = sum(usage.values())
        if reply.usage:
            with self.server.lock:
                self.server.prompt_tokens += usage["prompt_tokens"]
                self.server.completion_tokens += usage["completion_tokens"]
        message = {"role": "assistant", "content": reply.text, **reply.message}
        choice = {"index": 0, "message": message, "finish_reason": reply.finish, **reply.choice}
        data = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}
        return json.dumps(data | ({"usage": usage} if reply.usage else {})).encode()

    def _send(self, reply: Reply, content: bytes) -> None:
        if reply.endless:
            self.wfile.write(b"HTTP/1.1 200 x\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n")
            while not self.server.over.is_set():
                self.wfile.write(b" " * 1_000_000)
        head = {"content-type": "application/json", "content-length": str(len(content)), **reply.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        start = f"HTTP/1.1 {reply.status} x\r\n{lines}\r\n".encode()
        end = next((n for n in (reply.cut, reply.stall) if n is not None), len(content))
        # In one piece: two small ones would wait for each other.
        self.wfile.write(start + content[:end] if reply.cut != 0 else b"")
        if reply.stall is not None:
            self.server.over.wait(30)
        if reply.cut is not None or reply.stall is not None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
