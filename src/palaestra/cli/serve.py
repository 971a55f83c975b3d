"""`palaestra serve`: a model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import secrets
from typing import Annotated

import typer

from palaestra.core.errors import MissingExtraError


def serve(
    model: Annotated[
        str, typer.Option("--model", help="The model: a registered name, a folder, a hub id or a run folder.")
    ] = "nano",
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0: a free one.")] = 8000,
    api_key: Annotated[
        str,
        typer.Option(
            "--api-key",
            envvar="PALAESTRA_API_KEY",
            help="The key that clients must send. Default: none on localhost, a random one on other addresses.",
        ),
    ] = "",
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Maximum completion tokens of requests that set no limit.")
    ] = 512,
    max_batch: Annotated[int, typer.Option("--max-batch", min=1, help="Maximum completions in a batch.")] = 128,
    max_wait: Annotated[
        float,
        typer.Option(
            "--max-wait",
            min=0.0,
            help="Seconds without a new request after which a batch starts, for engines other than transformers.",
        ),
    ] = 0.01,
    device: Annotated[str, typer.Option("--device", help="The device of a local model, for example cuda.")] = "",
) -> None:
    """Serve a model with OpenAI's API (chat completions, completions, models) until Ctrl-C."""
    from palaestra.engines.base import close_engine
    from palaestra.engines.factory import check_model, open_engine
    from palaestra.engines.server import OpenAIServer, is_loopback

    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("uvicorn", "serve", "serving a model") from error
    check_model(model)
    if not is_loopback(host) and not api_key:
        api_key = secrets.token_urlsafe(24)
        typer.echo(f"API key: {api_key}")
    engine = open_engine(model, device=device)
    server = OpenAIServer(
        engine,
        model,
        api_key=api_key,
        max_tokens=max_tokens,
        max_batch=max_batch,
        max_wait=max_wait,
    )
    config = uvicorn.Config(server.make_app(), host=host, port=port, log_level="warning", timeout_graceful_shutdown=5)
    socket = config.bind_socket()
    socket.listen()  # Clients may connect as soon as they read the address.
    shown = f"[{host}]" if ":" in host else host
    typer.echo(f"serving {model} at http://{shown}:{socket.getsockname()[1]}/v1")
    try:
        uvicorn.Server(config).run(sockets=[socket])
    finally:
        server.close()
        close_engine(engine)
