"""The web server of the viewer. It reads run folders and writes nothing."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from palaestra.core.errors import PalaestraError, RunError
from palaestra.core.text import clean_text
from palaestra.view.access import TokenAccess
from palaestra.view.calls import render_call, render_calls
from palaestra.view.compare import MOST_RUNS, render_comparison
from palaestra.view.episodes import (
    make_episode_table,
    make_token_table,
    read_episode_json,
    render_episode,
    render_episodes,
)
from palaestra.view.examples import render_example, render_examples
from palaestra.view.pages import render, render_run, render_runs, render_settings
from palaestra.view.problems import render_problem, render_problems
from palaestra.view.runs import RunCard, RunIndex, file_state
from palaestra.view.save import add_links, save_part
from palaestra.view.tables import FORMATS, export_table
from palaestra.view.turns import read_text, render_conversation, render_pair, render_step

POLL = 0.5
"""Seconds between two looks at the files of a run."""
STATIC = {"view.css": "text/css", "view.js": "text/javascript", "icon.svg": "image/svg+xml"}


def make_app(roots: Sequence[Path], token: str = "", hosts: frozenset[str] = frozenset()) -> ASGIApp:
    """The viewer as an ASGI application.

    Arguments:
        roots: folders with runs below them, or run folders.
        token: the secret that a browser must bring; empty admits everyone.
        hosts: the accepted host names; empty accepts all.
    """
    pages = _Pages(RunIndex(roots))
    routes = [
        Route("/", pages.runs),
        Route("/runs.json", pages.runs_json),
        Route("/settings", pages.settings),
        Route("/compare", pages.compare),
        Route("/turns", pages.turns),
        Route("/events", pages.events),
        Route("/static/{name}", pages.static),
        Route("/run/{run:path}/episodes/{iteration:int}/{position:int}", pages.episode),
        Route("/run/{run:path}/episodes", pages.episodes),
        Route("/run/{run:path}/conversation/{episode:int}/{position:int}/{name}.txt", pages.show(read_text)),
        Route("/run/{run:path}/conversation/{episode:int}/{position:int}", pages.show(render_step)),
        Route("/run/{run:path}/conversation/{episode:int}", pages.show(render_conversation)),
        Route("/run/{run:path}/conversation", pages.show(render_conversation)),
        Route("/run/{run:path}/examples/{round:int}/{state}/{place:int}", pages.show(render_example)),
        Route("/run/{run:path}/examples", pages.show(render_examples)),
        Route("/run/{run:path}/problem", pages.show(render_problem)),
        Route("/run/{run:path}/problems", pages.show(render_problems)),
        Route("/run/{run:path}/calls/{position:int}", pages.show(render_call)),
        Route("/run/{run:path}/calls", pages.show(render_calls)),
        Route("/run/{run:path}/report.html", pages.old_link),
        Route("/run/{run:path}/", pages.run),
    ]  # fmt: skip
    for route in routes:
        route.app = _guard(route.app)
    app = Starlette(routes=routes, exception_handlers={HTTPException: _explain, PalaestraError: _explain})
    return TokenAccess(app, token, hosts)


def _guard(app: ASGIApp) -> ASGIApp:
    """Answer with an error page whatever a page raises: a folder of somebody else can be damaged in any way."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except (HTTPException, PalaestraError):
            raise
        except Exception as error:
            logging.getLogger(__name__).warning("%s cannot be shown", scope["path"], exc_info=True)
            raise RunError(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}") from error

    return answer


class _Pages:
    def __init__(self, index: RunIndex) -> None:
        self.index = index

    async def runs(self, request: Request) -> Response:
        return await _html(request, lambda: render_runs(self.index.cards(), request.query_params))

    async def runs_json(self, request: Request) -> Response:
        cards = await run_in_threadpool(self.index.cards)
        return JSONResponse([_to_data(card) for card in cards])

    async def settings(self, request: Request) -> Response:
        cards = self._find_chosen(request, 1)
        return await _html(request, lambda: render_settings(cards))

    async def compare(self, request: Request) -> Response:
        cards = self._find_chosen(request, 2)
        return await _html(request, lambda: render_comparison(cards))

    async def run(self, request: Request) -> Response:
        card = self._find(request.path_params["run"])
        return await _html(request, lambda: render_run(card))

    async def episodes(self, request: Request) -> Response:
        card, query = self._find(request.path_params["run"]), request.query_params
        if query.get("format") in FORMATS:
            return await run_in_threadpool(lambda: export_table(make_episode_table(card, query), query["format"]))
        return _page(await run_in_threadpool(render_episodes, card, query))

    async def episode(self, request: Request) -> Response:
        """One episode as a page, its record as JSON, or its tokens as CSV."""
        card, query = self._find(request.path_params["run"]), request.query_params
        place = request.path_params["iteration"], request.path_params["position"]
        if query.get("format") == "json":
            record = await run_in_threadpool(read_episode_json, card, *place)
            answer = None if record is None else Response(record, media_type="application/json")
        elif query.get("format") == "csv":
            table = await run_in_threadpool(make_token_table, card, *place)
            answer = None if table is None else export_table(table, "csv")
        else:
            page = await run_in_threadpool(render_episode, card, *place, query)
            answer = None if page is None else _page(page)
        if answer is None:
            raise HTTPException(404, "this episode is not stored")
        return answer

    async def turns(self, request: Request) -> Response:
        """Two conversations: `left` and `right` are RUN or RUN:EPISODE; or two chosen runs."""
        query = request.query_params
        names = [query["left"], query["right"]] if "left" in query and "right" in query else query.getlist("run")
        sides = [self._find_episode(name) for name in names]
        if len(sides) != 2 or any(card.kind != "research" for card, _ in sides):
            raise HTTPException(404, "choose two research runs in the list first")
        choices = [card for card in await run_in_threadpool(self.index.cards) if card.kind == "research"]
        page = await run_in_threadpool(render_pair, sides, choices, query)
        if page is None:
            raise HTTPException(404, "this episode is not stored")
        return _page(page)

    def _find_episode(self, name: str) -> tuple[RunCard, int]:
        run, colon, number = name.rpartition(":")
        return (self._find(run), int(number)) if colon and number.isdecimal() else (self._find(name), 0)

    def show(self, render_page: Callable[..., str | Response | None]) -> Callable[[Request], Awaitable[Response]]:
        """Make the handler of a page of a run. The page gets the query and the other parts of the path."""

        async def answer(request: Request) -> Response:
            values = dict(request.path_params)
            card = self._find(values.pop("run"))
            page = await run_in_threadpool(render_page, card, request.query_params, **values)
            if page is None:
                raise HTTPException(404, "this is not stored")
            return page if isinstance(page, Response) else await _html(request, lambda: page)

        return answer

    async def old_link(self, request: Request) -> Response:
        """The reports of studies and benches link to the reports of their runs."""
        return RedirectResponse(f"/run/{quote(request.path_params['run'])}/")

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404, "no such file")
        return Response((files("palaestra.view") / "static" / name).read_bytes(), media_type=STATIC[name])

    async def events(self, request: Request) -> Response:
        """Server-sent events: one whenever the run, or any run, has written something."""
        name = request.query_params.get("run", "")
        card = self._find(name) if name else None
        look = (
            (lambda: file_state(card.folder)) if card else (lambda: [file_state(c.folder) for c in self.index.cards()])
        )
        return StreamingResponse(_watch(request, look), media_type="text/event-stream")

    def _find_chosen(self, request: Request, least: int) -> list[RunCard]:
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not least <= len(names) <= MOST_RUNS:
            raise HTTPException(404, f"choose {least} to {MOST_RUNS} runs in the list first; {len(names)} are chosen")
        return [self._find(name) for name in names]

    def _find(self, name: str) -> RunCard:
        card = self.index.find(name.strip("/"))
        if card is None:
            raise HTTPException(404, f"there is no run '{name}' here")
        return card


async def _watch(request: Request, look: Callable[[], Any]) -> AsyncIterator[str]:
    state = await run_in_threadpool(look)
    yield "retry: 2000\n\n"
    while not await request.is_disconnected():
        await asyncio.sleep(POLL)
        now = await run_in_threadpool(look)
        yield ": still here\n\n" if now == state else "event: change\ndata: 1\n\n"
        state = now


async def _html(request: Request, make: Callable[[], str]) -> Response:
    """Render in a thread: a page may read megabytes. With `save` in the query, answer with that part of the page."""
    query = request.query_params
    if "save" not in query:
        return _page(await run_in_threadpool(lambda: add_links(make(), request.url.path, query.multi_items())))
    part = await run_in_threadpool(lambda: save_part(make(), query["save"]))
    if part is None:
        raise HTTPException(404, f"this page has no figure or table {query['save']}")
    name = quote(query["save"])
    return Response(part[0], media_type=part[1], headers={"content-disposition": f'attachment; filename="{name}"'})


def _page(text: str, status: int = 200) -> Response:
    """Make the answer with a page. A run may contain texts that UTF-8 cannot encode."""
    return HTMLResponse(clean_text(text), status)


async def _explain(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    reason = error.detail if isinstance(error, HTTPException) else str(error)
    page = render("problem", reason=reason, query={}, folder="", run=None, tab="")
    return _page(page, status)


def _to_data(card: RunCard) -> dict[str, Any]:
    names = ("id", "kind", "status", "subject", "model", "method", "figure", "figure_name", "started", "seconds", "money", "host", "tags")  # fmt: skip
    return {
        **{name: getattr(card, name) for name in names},
        "settings": json.loads(json.dumps(card.settings, default=str), parse_constant=str),
    }
