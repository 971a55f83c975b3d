"""Overhead of our engines: vLLM through `VLLMEngine` against `vllm.LLM.generate`, and `palaestra serve` against the engine.

vLLM is measured in an environment that has it, for example `.venv-vllm/bin/python benchmarks/engines.py`. Both sides use
one `vllm.LLM`, the same prompts and the same sampling parameters, twice: with token ids, and with texts that vLLM
tokenises, where ours renders and tokenises the messages.

The server runs in a thread of this process, so that both sides use one engine: the same work differs by a tenth or more
between two processes. 64 clients in another process, each with its own connection, send one request after the other. The
engine is called directly with the same requests, 64 at a time: as many as the clients have in flight.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any

from _common import arguments, finish, median, seconds

from palaestra.core.records import Request, Sampling, Split
from palaestra.engines.openai_format import to_chat_messages
from palaestra.engines.transformers import TransformersEngine
from palaestra.models import registry as models
from palaestra.serving.server import OpenAIServer
from palaestra.tasks.math.task import MathSkills

CLIENTS = 64


def main() -> None:
    options = arguments(__doc__ or "", threads=1, models=["nano"], part="vllm or serve; empty for both")
    figures: dict[str, Any] = {}
    ratios = []
    if options.part != "serve":
        if find_spec("vllm") is None:
            print(
                "skipped: vLLM is not installed here; use the Python of an environment with vLLM, see make test-backends"
            )
        else:
            figures["vllm"] = measure_vllm(options.models[0], options.quick)
            ratios += [figures["vllm"][kind]["ratio"] for kind in ("ids", "texts")]
    if options.part != "vllm":
        figures["serve"] = measure_server(options.models[0], options.quick)
        ratios.append(figures["serve"]["ratio"])
    finish("engines", min(ratios, default=0.0), model=options.models[0], **figures)


def make_requests(count: int, sampling: Sampling) -> list[Request]:
    problems = MathSkills().problems(Split.TEST, -(-count // 18), seed=0)[:count]
    return [Request(problem.messages, sampling, seed) for seed, problem in enumerate(problems)]


def compare(repetitions: int, direct: Callable[[], Any], ours: Callable[[], Any]) -> dict[str, Any]:
    """Time both in turns, in alternating order, after a warm-up.

    The ratio is the median over the turns, so that both sides of each ratio were measured under the same load. The ratio
    of CPU times depends less on the load.
    """
    direct(), ours()
    times: dict[Callable[[], Any], list[tuple[float, float]]] = {direct: [], ours: []}
    for repetition in range(repetitions):
        for work in (direct, ours) if repetition % 2 else (ours, direct):
            start = time.process_time()
            times[work].append((seconds(work), time.process_time() - start))
    pairs = list(zip(times[direct], times[ours], strict=True))
    return {
        "ratio": round(median([theirs[0] / mine[0] for theirs, mine in pairs]), 3),
        "cpu_ratio": round(median([theirs[1] / mine[1] for theirs, mine in pairs]), 3),
        "direct_seconds": median([seconds for seconds, _ in times[direct]]),
        "our_seconds": median([seconds for seconds, _ in times[ours]]),
        "repetitions": repetitions,
    }


def measure_vllm(name: str, quick: bool) -> dict[str, Any]:
    from palaestra.engines.factory import open_engine

    engine: Any = open_engine(f"vllm:{name}")
    requests = make_requests(256 if quick else 512, Sampling(64, temperature=1.0))
    ids = [answers[0].prompt_ids for answers in engine.generate(requests)]
    texts = [engine.tokenizer.decode(row) for row in ids]
    assert [tuple(engine.tokenizer.encode(text, add_special_tokens=False)) for text in texts] == ids
    exact = [replace(request, messages=(), prompt_ids=row) for request, row in zip(requests, ids, strict=True)]
    parameters = [engine._make_parameters(request) for request in requests]
    for parameter in parameters:
        parameter.flat_logprobs = False  # The format of the log-probs is ours; a direct call gets vLLM's default.
    llm, figures = engine._llm, {}
    for kind, prompts, asked in (
        ("ids", [{"prompt_token_ids": list(row)} for row in ids], exact),
        ("texts", [{"prompt": text} for text in texts], requests),
    ):

        def direct(prompts: Any = prompts) -> None:
            llm.reset_prefix_cache()
            llm.generate(prompts, parameters, use_tqdm=False)

        def ours(asked: Sequence[Request] = asked) -> None:
            llm.reset_prefix_cache()
            engine.generate(asked)

        figures[kind] = result = compare(3 if quick else 11, direct, ours)
        print(
            f"vLLM, {kind}: ratio {result['ratio']}, direct {result['direct_seconds']} s, ours {result['our_seconds']} s"
        )
    engine.close()
    return {"requests": len(requests), **figures}


def measure_server(name: str, quick: bool) -> dict[str, Any]:
    import uvicorn

    engine = TransformersEngine.from_loaded(models.load(name, device="cpu"))
    requests = make_requests(2 * CLIENTS if quick else 8 * CLIENTS, Sampling(64, temperature=1.0))
    bodies = [make_body(name, request) for request in requests]
    app = OpenAIServer(engine, name)
    config = uvicorn.Config(app.make_app(), port=0, log_level="warning")
    socket, server = config.bind_socket(), uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    with get_context("spawn").Pool(1) as clients:

        def direct() -> None:
            for start in range(0, len(requests), CLIENTS):
                engine.generate(requests[start : start + CLIENTS])

        def ours() -> None:
            clients.apply(run_clients, (socket.getsockname()[1], bodies))

        result = compare(3 if quick else 7, direct, ours)
    server.should_exit = True
    thread.join()
    app.close()
    print(
        f"serve, {len(requests)} requests: ratio {result['ratio']}, direct {result['direct_seconds']} s, "
        f"served {result['our_seconds']} s"
    )
    return {"requests": len(requests), "clients": CLIENTS, **result}


def make_body(name: str, request: Request) -> bytes:
    return json.dumps(
        {
            "model": name,
            "messages": to_chat_messages(request.messages),
            "max_tokens": request.sampling.max_tokens,
            "temperature": request.sampling.temperature,
            "seed": request.seed,
            "logprobs": True,
        }
    ).encode()


def run_clients(port: int, bodies: Sequence[bytes]) -> None:
    asyncio.run(send_all(port, bodies))


async def send_all(port: int, bodies: Sequence[bytes]) -> None:
    """Send every body once, from `CLIENTS` clients. The clients do as little as possible: the server is measured."""
    waiting = iter(bodies)

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for body in waiting:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert answer.startswith(b"http/1.1 200"), answer
            await reader.readexactly(int(answer.partition(b"content-length:")[2].split(b"\r\n")[0]))
        writer.close()

    await asyncio.gather(*(work() for _ in range(CLIENTS)))


if __name__ == "__main__":
    main()
