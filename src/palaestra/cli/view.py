"""`palaestra view`: the runs of a folder in the browser."""

from __future__ import annotations

import secrets
import webbrowser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from palaestra.cli.options import document
from palaestra.core.access import list_host_names, list_urls, listen
from palaestra.core.errors import MissingExtraError, RunError


@document
def view(
    folders: Annotated[list[Path] | None, typer.Argument(metavar="[RUNS]...")] = None,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser")] = True,
) -> None:
    """Show runs in the browser, while they go on, until Ctrl-C. The pages need no network. They change only names and notes.

    Arguments:
        folders: Folders with runs or checks, a check.json, or folders with trajectories of ATIF or OTLP.
            Default: runs/.
        host: The address to listen on.
        port: The port; 0: a free one.
        browser: Open the page in a browser.
    """
    try:
        import uvicorn

        from palaestra.report.page import CHECK
        from palaestra.view import make_app
        from palaestra.view.runs import RunIndex
        from palaestra.view.trajectories import import_trajectories
    except ImportError as error:
        raise MissingExtraError("starlette and uvicorn", "serve", "the viewer") from error
    folders = [path.parent if path.name == CHECK and path.is_file() else path for path in folders or [Path("runs")]]
    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"there is no folder {folder}; name a folder with runs: palaestra view FOLDER")
    token = secrets.token_urlsafe(24)
    with TemporaryDirectory(prefix="palaestra-view-") as temporary:
        shown: list[Path] = []
        for folder in folders:
            # Files of other systems are read once; a run is read again whenever it changes.
            imported, problems = None, list[str]()
            if RunIndex([folder]).is_empty:
                imported, problems = import_trajectories(folder, Path(temporary, str(len(shown))))
            shown.append(imported or folder)
            for problem in problems:
                typer.echo(f"left out: {problem}")
        app = make_app(shown, token, list_host_names(host))
        socket = listen(host, port)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        address, *others = [f"{url}/?token={token}" for url in list_urls(host, socket.getsockname()[1])]
        typer.echo(f"runs of {', '.join(map(str, folders))}: {address}")
        for other in others:
            typer.echo(f"from other machines: {other}")
        if browser:
            webbrowser.open(address)
        uvicorn.Server(config).run(sockets=[socket])
