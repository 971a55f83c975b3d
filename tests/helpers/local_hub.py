"""A local server with the few routes of the Hugging Face hub that an upload uses. It keeps what was uploaded."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class LocalHub:
    """Repositories by kind and name with their files, and the headers of the last request.

    Arguments:
        token: the only token that it accepts.
    """

    def __init__(self, token: str) -> None:
        self.token = token
        self.address = ""
        self.repositories: dict[str, dict[str, Any]] = {}

    def answer(self, path: str, body: bytes, token: str) -> tuple[int, dict[str, Any]]:
        if token != f"Bearer {self.token}":
            return 401, {"error": "Invalid credentials"}
        if path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}" if wanted.get("organization") else wanted["name"]
            kind = wanted.get("type") or "model"
            private = bool(wanted.get("private")) or wanted.get("visibility") == "private"
            self.repositories.setdefault(f"{kind}s/{name}", {"private": private, "files": {}})
            return 200, {"url": f"{self.address}/{'datasets/' if kind == 'dataset' else ''}{name}"}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        _, _, kind, owner, name, *action = path.split("/")
        repository = self.repositories.get(f"{kind}/{owner}/{name}")
        if repository is None:
            return 404, {"error": "Repository not found"}
        if action[:1] == ["preupload"]:
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            return 200, {"files": modes}
        if action[:1] == ["commit"]:
            for line in body.splitlines():
                operation = json.loads(line)
                if operation["key"] == "file":
                    value = operation["value"]
                    repository["files"][value["path"]] = base64.b64decode(value["content"])
            return 200, {"success": True, "commitOid": "0" * 40, "commitUrl": f"{self.address}/{owner}/{name}/commit/0"}
        return 200, {"id": f"{owner}/{name}", "sha": "0" * 40, "siblings": [], "private": False}


@contextmanager
def open_local_hub(token: str) -> Iterator[LocalHub]:
    hub = LocalHub(token)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, data = hub.answer(self.path.partition("?")[0], body, self.headers.get("Authorization", ""))
            content = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
