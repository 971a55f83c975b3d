"""`palaestra research mcp`: a research run whose agent is a client of the Model Context Protocol.

The run is played in its own thread like any other: every call is a stored step. It ends with a submission, at a limit,
or when the client disconnects, which submits the current workspace. `resume` completes a killed run.
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
from typing import TYPE_CHECKING, Unpack

from palaestra.core.records import Listener, ignore
from palaestra.recipes.research.recipe import ResearchResult, resolve_paths, run_research
from palaestra.recipes.research.settings import ResearchSettings
from palaestra.recipes.settings import resolve_settings
from palaestra.research.agents.mcp import AGENT, CHANNEL, EpisodeChannel, make_server, serve
from palaestra.research.workspace.commands import CommandResult
from palaestra.research.workspace.workspace import Step
from palaestra.runs.run import Run

if TYPE_CHECKING:
    from palaestra.recipes.keywords import ResearchKeywords


def serve_research(
    settings: ResearchSettings | None = None,
    *,
    out: str | Path = "",
    listener: Listener = ignore,
    serving: Callable[[EpisodeChannel, str], None] = serve,
    ended: Callable[[ResearchResult], object] = lambda result: None,
    **values: Unpack[ResearchKeywords],
) -> ResearchResult:
    """Serve a task over stdin and stdout until the client disconnects, and score the submission.

    The server's instructions are the opening messages of the episode.

    Arguments:
        settings: the settings of the run, or single ones as keywords; those of the agent and its model do not apply.
        out: the run folder; by default a new one below `runs/`.
        listener: receives progress events in another thread.
        serving: serves a client until it disconnects, given the channel and the instructions.
        ended: called when the run has ended, before the client is notified.

    Raises:
        MissingExtraError: the package `mcp` is not installed.
    """
    settings = resolve_settings(ResearchSettings, settings, values)
    # The agent's module registers it, also when the run is resumed.
    plugins = tuple(dict.fromkeys((*settings.plugins, EpisodeChannel.__module__)))
    settings = resolve_paths(replace(settings, agent=AGENT, tools=True, plugins=plugins))
    channel = EpisodeChannel(settings.commands)
    make_server(channel)  # Raises before anything is written.

    def play() -> ResearchResult:
        CHANNEL.set(channel)
        try:
            result = run_research(settings, out=out, listener=listener)
            ended(result)
            with Run.open(result.folder, read_only=True) as run:
                channel.close(run.store.steps(Step, 0)[-1])
        except BaseException as error:
            text = f"The episode ended: something around you broke. {error}"
            channel.answer(CommandResult(text, ok=False), over=True)
            raise
        return result

    with ExitStack() as behind, ThreadPoolExecutor(1, "episode") as thread:
        try:
            # Output of task code must not reach the protocol. While serving, the server prevents this.
            with redirect_stdout(sys.stderr):
                playing = thread.submit(copy_context().run, play)
                channel.opened.wait()
            if not channel.over:
                serving(channel, channel.opening)
        finally:  # The client has disconnected.
            behind.enter_context(redirect_stdout(behind.enter_context(open(os.devnull, "w"))))
            channel.hang_up()
        return playing.result()
