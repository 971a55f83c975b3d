"""Call an ASGI application without a network."""

from __future__ import annotations

import asyncio
import json
from typing import Any

JSON = {"content-type": "application/json"}


async def call(
    app: Any, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    """Send a request and return status and text of the response. A body that is not bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    sent, response, over = [False], {"status": 0, "text": b""}, asyncio.Event()

    async def receive() -> dict[str, Any]:
        if sent[0]:
            await over.wait()
            return {"type": "http.disconnect"}
        sent[0] = True
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: Any) -> None:
        response["status"] = message.get("status", response["status"])
        response["text"] += message.get("body", b"")

    named = {"host": "127.0.0.1", **(JSON if headers is None else headers)}
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(key.lower().encode("latin-1"), value.encode("latin-1")) for key, value in named.items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    try:
        await app(scope, receive, send)
    except Exception:  # Starlette raises errors again after it has answered them.
        assert response["status"] == 500
    over.set()
    return response["status"], response["text"].decode()
