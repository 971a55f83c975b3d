"""Token authentication and host checks."""

from __future__ import annotations

import hmac
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from palaestra.core.access import find_access_error

_COOKIE = "palaestra-view"
_POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
}
"""No page loads anything from elsewhere, and no script but ours runs, whatever a model has written."""


class TokenAccess:
    """Lets requests through that have the token.

    The first request has it in its URL and gets a cookie instead, so that it is in no link and no history. Host name and
    origin are checked by `find_access_error`; a form, which changes something, must come with its origin.

    Arguments:
        token: the secret; empty admits everyone, for tests and for servers behind an access control of their own.
        hosts: the accepted host names; empty accepts all.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: frozenset[str] = frozenset()) -> None:
        self.app, self.token, self.hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_safely(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                named = [(key.encode(), value.encode()) for key, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *named]}  # type: ignore[misc]
            await send(message)

        answer = self._check(scope)
        await (answer or self.app)(scope, receive, send_safely)  # type: ignore[arg-type]

    def _check(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if error := find_access_error(headers.get("host", ""), headers.get("origin"), self.hosts):
            return PlainTextResponse(error, 403)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("this server answers GET and POST", 405)
        if scope["method"] == "POST" and not headers.get("origin"):
            return PlainTextResponse("a form is accepted from this server's own pages only", 403)
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if "token" in query:
            if not self._matches(query.pop("token")[0]):
                return PlainTextResponse("wrong token", 403)
            rest = urlencode(query, doseq=True)
            response = RedirectResponse(scope["path"] + (f"?{rest}" if rest else ""), 303)
            response.set_cookie(_COOKIE, self.token, httponly=True, samesite="strict")
            return response
        cookie = SimpleCookie(headers.get("cookie", "")).get(_COOKIE)
        if self.token and not (cookie and self._matches(cookie.value)):
            return PlainTextResponse("open the address that `palaestra view` printed: it has the token", 403)
        return None

    def _matches(self, value: str) -> bool:
        return hmac.compare_digest(value.encode(), self.token.encode())
