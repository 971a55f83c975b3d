"""The web server of the viewer. It reads run folders; only the names and notes of runs can be changed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import fields
from mimetypes import guess_type
from pathlib import Path
from urllib.parse import parse_qs, quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from palaestra.core.errors import PalaestraError, RunError
from palaestra.core.text import clean_text
from palaestra.report.notes import RunNotes, read_notes, write_notes
from palaestra.view.access import TokenAccess
from palaestra.view.charts import MAX_CHARTED, render_charts
from palaestra.view.conversation import render_conversation, render_pair, render_step, render_text
from palaestra.view.episodes import render_episode, render_episodes
from palaestra.view.lessons import render_call, render_calls, render_example, render_examples
from palaestra.view.log import render_log
from palaestra.view.pages import (
    MAX_RUNS,
    ViewerPage,
    render,
    render_comparison,
    render_run,
    render_runs,
    render_settings,
)
from palaestra.view.problems import render_problem, render_problems
from palaestra.view.runs import TRAJECTORIES, RunCard, RunIndex, file_state
from palaestra.view.trajectories import render_trajectories

_POLL = 0.5
"""Seconds between two looks at the files of a run."""
_COLUMNS = "palaestra-columns"
"""The cookie with the columns that the reader has chosen."""
_TALKS = ("research", TRAJECTORIES)
"""The kinds of runs with conversations."""
_MAX_BODY = 200_000
"""Maximum bytes of a form."""
_RUN_PAGES: dict[str, Callable[..., ViewerPage | Response | None]] = {
    "episodes/{iteration:int}/{position:int}": render_episode,
    "episodes": render_episodes,
    "conversation/{episode:int}/{position:int}/{name}.txt": render_text,
    "conversation/{episode:int}/{position:int}": render_step,
    "conversation/{episode:int}": render_conversation,
    "conversation": render_conversation,
    "examples/{round:int}/{state}/{place:int}": render_example,
    "examples": render_examples,
    "problem": render_problem,
    "problems": render_problems,
    "calls/{position:int}": render_call,
    "calls": render_calls,
    "charts": lambda card, query: render_charts([card], query),
    "log": render_log,
    "": lambda card, query: (render_trajectories if card.kind == TRAJECTORIES else render_run)(card, query),
}
"""The pages of a run, by their address. Each gets the run, the query and the values of the address."""
_Page = Callable[[Request], ViewerPage | Response | None]


def make_app(roots: Sequence[Path], token: str = "", hosts: frozenset[str] = frozenset()) -> ASGIApp:
    """The viewer as an ASGI application.

    Arguments:
        roots: folders with runs below them, or run folders.
        token: the secret that a browser must bring; empty admits everyone.
        hosts: the accepted host names; empty accepts all.
    """
    pages = _Pages(RunIndex(roots))
    routes = [
        Route("/", _answer(pages.runs)),
        Route("/runs.json", _answer(pages.runs_json)),
        Route("/settings", _answer(lambda request: render_settings(pages.find_chosen(request, 1)))),
        Route("/compare", _answer(lambda request: render_comparison(pages.find_chosen(request, 2)))),
        Route(
            "/charts",
            _answer(lambda request: render_charts(pages.find_chosen(request, 1, MAX_CHARTED), request.query_params)),
        ),
        Route("/turns", _answer(pages.turns)),
        Route("/events", pages.events),
        Mount("/static", StaticFiles(packages=[("palaestra.view", "static")])),
        Route("/run/{run:path}/report.html", _redirect),
        Route("/run/{run:path}/notes", pages.write_notes, methods=["POST"]),
        *(Route(f"/run/{{run:path}}/{path}", _answer(pages.show(page))) for path, page in _RUN_PAGES.items()),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _explain, PalaestraError: _explain})
    return TokenAccess(app, token, hosts)


def _answer(make: _Page) -> Callable[[Request], Response]:
    """Make the handler of a page, which Starlette calls in a thread: a page may read megabytes.

    Whatever a page raises becomes an error page: a folder of somebody else can be damaged in any way.
    """

    def answer(request: Request) -> Response:
        try:
            page = make(request)
            if page is None:
                raise HTTPException(404, "this is not stored")
            return page if isinstance(page, Response) else _send(request, page)
        except (HTTPException, PalaestraError):
            raise
        except Exception as error:
            logging.getLogger(__name__).warning("%s cannot be shown", request.url.path, exc_info=True)
            raise RunError(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}") from error

    return answer


def _send(request: Request, page: ViewerPage) -> Response:
    """Answer with a page, or with the part of it that `save` in the query names."""
    query = request.query_params
    if "save" not in query:
        # A run may contain texts that UTF-8 cannot encode.
        return HTMLResponse(clean_text(page.add_links(request.url.path, query.multi_items())))
    match page.find_part(query["save"]):
        case part, kind:
            headers = {"content-disposition": f'attachment; filename="{quote(query["save"])}"'}
            return Response(part.write(kind), media_type=guess_type(query["save"])[0], headers=headers)
    raise HTTPException(404, f"this page has no figure or table {query['save']}")


def _explain(request: Request, error: Exception) -> Response:
    status, reason = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, str(error))
    return HTMLResponse(clean_text(render("problem", {"reason": reason}).html), status)


def _redirect(request: Request) -> Response:
    """The reports of studies and benches link to the reports of their runs."""
    return RedirectResponse(f"/run/{quote(request.path_params['run'])}/")


class _Pages:
    def __init__(self, index: RunIndex) -> None:
        self.index = index

    def runs(self, request: Request) -> Response:
        query, known = request.query_params, request.cookies.get(_COLUMNS, "")
        columns = query.getlist("column") or [name for name in known.split(".") if name]
        response = _send(request, render_runs(self.index.cards(), query, columns))
        if "column" in query:
            response.set_cookie(_COLUMNS, ".".join(columns), max_age=10**8, httponly=True, samesite="strict")
        return response

    async def write_notes(self, request: Request) -> Response:
        """Change the name or the notes of a run, then show the page that the form was on."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MAX_BODY:
                raise HTTPException(413, f"a form may have at most {_MAX_BODY} bytes")
        form = {name: values[-1] for name, values in parse_qs(body.decode(), keep_blank_values=True).items()}
        card = await run_in_threadpool(self.find, request.path_params["run"])
        stored = await run_in_threadpool(read_notes, card.folder, card.settings)
        name, text = form.get("name", stored.name), form.get("text", stored.text).replace("\r\n", "\n")
        notes = RunNotes(" ".join(name.split()), text.strip())
        await run_in_threadpool(write_notes, card.folder, notes)
        back = f"/?{form['query']}" if "query" in form else f"/run/{quote(card.id)}/"
        return RedirectResponse(back, 303)

    def runs_json(self, request: Request) -> Response:
        rows = []
        for card in self.index.cards():
            settings = json.loads(json.dumps(card.settings, default=str), parse_constant=str)
            row = {
                field.name: getattr(card, field.name) for field in fields(card) if field.name not in ("folder", "spark")
            }
            rows.append({**row, "settings": settings})
        return JSONResponse(rows)

    def show(self, make: Callable[..., ViewerPage | Response | None]) -> _Page:
        """Make a page of a run."""

        def render_page(request: Request) -> ViewerPage | Response | None:
            values = dict(request.path_params)
            return make(self.find(values.pop("run")), request.query_params, **values)

        return render_page

    def turns(self, request: Request) -> ViewerPage | None:
        """Two conversations: `left` and `right` are RUN or RUN:EPISODE; or two chosen runs."""
        query = request.query_params
        names = [query["left"], query["right"]] if "left" in query and "right" in query else query.getlist("run")
        sides = [self._find_episode(name) for name in names]
        if len(sides) != 2 or any(card.kind not in _TALKS for card, _ in sides):
            raise HTTPException(404, "choose two research runs in the list first")
        return render_pair(sides, [card for card in self.index.cards() if card.kind in _TALKS], query)

    async def events(self, request: Request) -> Response:
        """Server-sent events: one whenever the run, or any run, has written something."""
        name = request.query_params.get("run", "")
        card = self.find(name) if name else None

        def look() -> object:
            return [file_state(c.folder) for c in ([card] if card else self.index.cards())]

        return StreamingResponse(_watch(request, look), media_type="text/event-stream")

    def find(self, name: str) -> RunCard:
        card = self.index.find(name.strip("/"))
        if card is None:
            raise HTTPException(404, f"there is no run '{name}' here")
        return card

    def find_chosen(self, request: Request, least: int, most: int = MAX_RUNS) -> list[RunCard]:
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not least <= len(names) <= most:
            raise HTTPException(404, f"choose {least} to {most} runs in the list first; {len(names)} are chosen")
        return [self.find(name) for name in names]

    def _find_episode(self, name: str) -> tuple[RunCard, int]:
        run, colon, number = name.rpartition(":")
        return (self.find(run), int(number)) if colon and number.isdecimal() else (self.find(name), 0)


async def _watch(request: Request, look: Callable[[], object]) -> AsyncIterator[str]:
    state = await run_in_threadpool(look)
    yield "retry: 2000\n\n"
    while not await request.is_disconnected():
        await asyncio.sleep(_POLL)
        now = await run_in_threadpool(look)
        yield ": still here\n\n" if now == state else "event: change\ndata: 1\n\n"
        state = now
