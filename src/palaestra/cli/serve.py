"""`palaestra serve`: a model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palaestra.cli.options import document
from palaestra.cli.terminal import quiet
from palaestra.core.access import is_loopback, list_host_names, list_urls, listen
from palaestra.core.errors import MissingExtraError, SettingsError
from palaestra.core.records import Json
from palaestra.core.text import mask_data

if TYPE_CHECKING:
    from palaestra.serving.server import OpenAIServer


@document
def serve(
    model: str = "nano",
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    api_key: Annotated[str, typer.Option(envvar="PALAESTRA_API_KEY")] = "",
    max_tokens: Annotated[int, typer.Option(min=1)] = 512,
    max_batch: Annotated[int, typer.Option(min=1)] = 128,
    max_wait: Annotated[float, typer.Option(min=0.0)] = 0.01,
    max_body: Annotated[int, typer.Option(min=1)] = 32,
    max_characters: Annotated[int, typer.Option(min=1)] = 10 * 2**20,
    max_prompts: Annotated[int, typer.Option(min=1)] = 2048,
    max_requests: Annotated[int, typer.Option(min=1)] = 1024,
    device: str = "",
    engine_option: list[str] | None = None,
    receive_weights: Annotated[bool, typer.Option("--receive-weights")] = False,
    capture: Annotated[bool, typer.Option("--capture")] = False,
    env: str = "",
    env_option: list[str] | None = None,
    max_sessions: Annotated[int, typer.Option(min=1)] = 1024,
    trajectories: Path | None = None,
    temperature: Annotated[float, typer.Option(min=0.01)] = 1.0,
    override_sampling: Annotated[bool, typer.Option("--override-sampling")] = False,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Serve a model with OpenAI's API (chat completions, completions, models) until Ctrl-C.

    Arguments:
        model: The model: a registered name, a folder, a hub id or a run folder.
        host: The address to listen on.
        port: The port; 0: a free one.
        api_key: The key that clients must send. Default: none on localhost, a random one on other addresses.
        max_tokens: Maximum completion tokens of requests that set no limit.
        max_batch: Maximum completions in a batch.
        max_wait: Seconds without a new request after which a batch starts, for engines other than transformers.
        max_body: Maximum MiB of a request's body; a larger one has status 413.
        max_characters: Maximum characters of a request's prompts or messages.
        max_prompts: Maximum completions of a request: prompts times n.
        max_requests: Maximum open requests; a further one has status 429.
        device: The device of a local model, for example cuda.
        engine_option: Argument of vllm.LLM as name=value for vllm:MODEL, for example tensor_parallel_size=2.
        receive_weights: Sample the rollouts of `train --rollout-servers`: whoever may send requests may also replace the weights.
        capture: Record the exact tokens of calls to /sessions/NAME/v1, one session per episode of an agent.
        env: With --capture: a turn environment for each session, at /sessions/NAME/env.
        env_option: Option of the environment as name=value (value in JSON).
        max_sessions: With --capture: maximum open sessions; a further one has status 429.
        trajectories: With --capture: append each ended session to this JSONL file.
        temperature: With --capture: the sampling temperature of calls without one.
        override_sampling: With --capture: replace the sampling parameters of calls by the policy's.
        seed: With --capture: the seed of samples and episodes.
    """
    from palaestra.core.records import LOCAL_SCHEME
    from palaestra.engines.base import check_serves_weights, close_engine, get_scheme
    from palaestra.engines.factory import check_model, get_engine_class, open_engine
    from palaestra.models.registry import check_device
    from palaestra.recipes.settings import parse_options
    from palaestra.serving.server import OpenAIServer

    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("uvicorn", "serve", "serving a model") from error
    check_model(model)
    check_device(device)
    if not capture and (env or trajectories or override_sampling):
        raise SettingsError("--env, --trajectories and --override-sampling need --capture")
    if capture and (receive_weights or engine_option):
        raise SettingsError("--receive-weights and --engine-option are for servers without --capture")
    options = parse_options(engine_option or [], "engine_option")
    if options and get_scheme(model) == LOCAL_SCHEME:
        raise SettingsError(f"option '--engine-option': expected vllm:{model}, whose arguments they are; got {model}")
    socket = listen(host, port)  # Before the model is loaded; clients wait until it is.
    quiet()
    typer.echo(f"loading {model}", err=True)
    if not is_loopback(host) and not api_key:
        api_key = secrets.token_urlsafe(24)
        typer.echo(f"API key: {api_key}")
    limits: Json = {"api_key": api_key, "max_tokens": max_tokens, "max_batch": max_batch, "max_wait": max_wait}
    limits |= {"max_body": max_body * 2**20, "max_characters": max_characters}
    limits |= {"max_prompts": max_prompts, "max_requests": max_requests}
    server: OpenAIServer
    if capture:
        limits |= {"temperature": temperature, "override_sampling": override_sampling, "max_sessions": max_sessions}
        server = _make_session_server(model, device, env, env_option or [], trajectories, seed, **limits)
    elif receive_weights:
        from palaestra.serving.weight_updates import RolloutServer

        check_serves_weights(get_scheme(model), "model")
        engine = get_engine_class(model).open_for_rollouts(model, device=device, **options)
        server = RolloutServer(engine, model, **limits)
    else:
        server = OpenAIServer(open_engine(model, device=device, **options), model, **limits)
    app = server.make_app(list_host_names(host))
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
    urls = [f"{url}{'/sessions/NAME' if capture else ''}/v1" for url in list_urls(host, socket.getsockname()[1])]
    typer.echo(f"serving {model} at {' and '.join(urls)}")
    try:
        uvicorn.Server(config).run(sockets=[socket])
    finally:
        server.close()
        close_engine(server.engine)


def _make_session_server(
    model: str, device: str, env: str, env_kwargs: list[str], trajectories: Path | None, seed: int, **options: Any
) -> OpenAIServer:
    """Make the server of `--capture`. Raises before a model is loaded if a name or an option is wrong."""
    import json

    from palaestra.core.seeding import Seeds
    from palaestra.engines.base import check_serves_weights, get_scheme
    from palaestra.engines.factory import get_engine_class
    from palaestra.envs.factory import check_options, detect_kind, make_turn_env
    from palaestra.envs.turn.player import TurnEpisodePlayer
    from palaestra.recipes.settings import parse_options
    from palaestra.serving.session_server import SessionServer

    check_serves_weights(get_scheme(model), "model")
    values = parse_options(env_kwargs, "env_option")
    if env:
        if detect_kind(env, values) != "turn":
            raise SettingsError(f"option '--env': expected a turn environment; got {env}")
        check_options(env, values)

    def make_player(episode: int) -> TurnEpisodePlayer:
        return TurnEpisodePlayer(make_turn_env(env, 1, values, autoreset=False).envs[0], episode)

    def append(record: Json) -> None:
        if trajectories is not None:
            with trajectories.open("a", encoding="utf-8") as file:
                file.write(json.dumps(mask_data(record)) + "\n")

    engine = get_engine_class(model).open_for_rollouts(model, device=device)
    return SessionServer(
        engine, model, seeds=Seeds(seed), make_player=make_player if env else None, on_end=append, **options
    )
