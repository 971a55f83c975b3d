"""`palaestra research mcp`: a run of research whose agent is a client of the Model Context Protocol.

The run is one like any other, in a thread of its own: every call is a step that is stored as it is done. It ends with a
submission, a limit, or with the client; what is there is then handed in. One that was killed is ended by `resume`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, redirect_stdout
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any

from palaestra.core.events import Listener, ignore
from palaestra.recipes.research.recipe import ResearchResult, ResearchSettings, research, settled
from palaestra.recipes.settings import resolve_settings
from palaestra.research.agents.mcp import AGENT, LINE, Line, make_server, serve
from palaestra.research.workspace.commands import Outcome
from palaestra.research.workspace.step_record import Step
from palaestra.runs.run import Run


def serve_research(
    settings: ResearchSettings | None = None,
    *,
    out: str | Path = "",
    listener: Listener = ignore,
    serving: Callable[[Line, str], None] = serve,
    ended: Callable[[ResearchResult], object] = lambda result: None,
    **values: Any,
) -> ResearchResult:
    """Serve a task over stdin and stdout until the client leaves, and score what it hands in.

    The server's instructions are what an agent is told at the beginning.

    Arguments:
        settings: of the run, or single ones as keywords; those of the agent and its model mean nothing here.
        out: the run folder; a new one below `runs/` if empty.
        listener: is told of the progress, in another thread.
        serving: lets a client call until it leaves, given the line and the instructions.
        ended: called when the run has ended, before the client hears of it.

    Raises:
        MissingExtraError: the package `mcp` is not installed.
    """
    settings = resolve_settings(ResearchSettings, settings, values)
    # The agent is none that a user names: it comes with its module, for whoever resumes the run as well.
    plugins = tuple(dict.fromkeys((*settings.plugins, Line.__module__)))
    settings = settled(replace(settings, agent=AGENT, tools=True, plugins=plugins))
    line = Line(settings.commands)
    make_server(line)  # What cannot be served is said before anything is written.

    def play() -> ResearchResult:
        LINE.set(line)
        try:
            result = research(settings, out=out, listener=listener)
            ended(result)
            with Run.open(result.folder, read_only=True) as run:
                line.close(run.store.steps(Step, 0)[-1])
        except BaseException as error:
            line.answer(Outcome(f"The episode ended: something around you broke. {error}", ok=False), over=True)
            raise
        return result

    with ExitStack() as behind, ThreadPoolExecutor(1, "episode") as thread:
        try:
            # What a task's own code prints is no part of the protocol. While it is served, the server sees to that.
            with redirect_stdout(sys.stderr):
                playing = thread.submit(copy_context().run, play)
                line.opened.wait()
            if not line.over:
                serving(line, line.opening)
        finally:  # Nobody listens any more.
            behind.enter_context(redirect_stdout(behind.enter_context(open(os.devnull, "w"))))
            line.hang_up()
        return playing.result()
