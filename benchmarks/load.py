"""Many clients on `palaestra serve`, and a soak: training, serving and viewing side by side for some minutes.

Clients: 500 connections to one server with `nano`, each with chat completions one after the other, in waves. Every answer is
counted; the server's memory, open files and threads are compared before and after. Soak (`--minutes`): a run trains, four
clients ask a server without a pause, and a reader opens the pages of the run in the viewer. Every ten seconds the resident
size, open files and number of processes of each are recorded; growth from the second to the last quarter is a failure. The ratio is the
fraction of answers without an error. Everything is on 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from _common import arguments, finish
from viewer import Viewer
from viewer import serve as open_viewer

MAX_TOKENS, WAVES, TIMEOUT, MEGABYTE = 16, 10, 300.0, 10**6
SAMPLE_SECONDS = 10.0
MAX_GROWTH = {"megabytes": 25.0, "files": 4.0, "processes": 0.0}
"""How much more than in the second quarter of the soak a process may have in the last one."""
TRAIN = [
    "--env=palaestra/CoT-v0", "--model=nano", "--episodes=16", "--num-envs=16", "--group-size=4", "--evaluation=0", "--max-tokens=16",
    "--iterations=1000000", "--checkpoint-every=5", "--threads=1",
]  # fmt: skip


def main() -> None:
    texts = {"clients": "number of clients (500)", "minutes": "minutes of the soak (0: none)"}
    options = arguments(__doc__ or "", **texts)
    clients = int(options.clients or (50 if options.quick else 500))
    minutes = float(options.minutes or (1 if options.quick else 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    figures: dict[str, Any] = {"clients": measure_clients(clients)}
    answers = Counter(figures["clients"]["answers"])
    if minutes:
        figures["soak"] = soak(minutes)
        answers += Counter(figures["soak"]["answers"])
    finish("load", answers["200"] / answers.total(), **figures)
    if faults := [fault for part in figures.values() for fault in part["faults"]]:
        sys.exit("; ".join(faults))


@contextmanager
def open_server() -> Iterator[tuple[int, int]]:
    """Start `palaestra serve`. Yields its process and port."""
    command = [sys.executable, "-m", "palaestra", "serve", "--model", "nano", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        [port] = re.findall(r":(\d+)/v1", process.stdout.readline())
        yield process.pid, int(port)
    finally:
        process.terminate()
        process.wait(30)


def measure_clients(count: int) -> dict[str, Any]:
    """Waves of `count` clients with one request each. The first ones warm the server."""
    with open_server() as (process, port):
        asyncio.run(send_wave(port, 4))
        before, waves, answers = measure_process(process), [], Counter[str]()
        for _ in range(WAVES):
            start = time.perf_counter()
            seconds, statuses = asyncio.run(send_wave(port, count))
            answers += statuses
            cut = statistics.quantiles(seconds, n=100)
            latency = {"p50": round(cut[49], 2), "p95": round(cut[94], 2), "p99": round(cut[98], 2)}
            time.sleep(1.0)  # The server closes the connections.
            waves.append(
                {**latency, "seconds": round(time.perf_counter() - start - 1, 2), "after": measure_process(process)}
            )
            print(json.dumps(waves[-1]), flush=True)
    # Caches and the allocator's free lists fill in steps, so the memory after the middle waves is compared with the last ones.
    middle, last = (statistics.median(wave["after"]["megabytes"] for wave in waves[k : k + 3]) for k in (3, WAVES - 3))
    faults = [f"{answers.total() - answers['200']} answers with an error"] if answers.total() != answers["200"] else []
    faults += find_growth("serve", {**before, "megabytes": middle}, {**waves[-1]["after"], "megabytes": last})
    return {"number": count, "before": before, "waves": waves, "answers": dict(answers), "faults": faults}


async def send_wave(port: int, count: int) -> tuple[list[float], Counter[str]]:
    """The seconds of each answer of `count` concurrent clients, and how often each status was received."""
    results = await asyncio.gather(*(ask(port, number) for number in range(count)))
    return [seconds for seconds, _ in results], Counter(status for _, status in results)


async def ask(port: int, number: int) -> tuple[float, str]:
    """One chat completion on a connection of its own. Returns its seconds and its status, or the error's name."""
    body = json.dumps(
        {
            "model": "nano", "max_tokens": MAX_TOKENS, "seed": number, "temperature": 1.0,
            "messages": [{"role": "user", "content": f"{number} + {number % 7} = ?"}],
        }
    )  # fmt: skip
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    start, status = time.perf_counter(), ""
    try:
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
            await writer.drain()
            answer = (await reader.read()).decode()
            writer.close()
            status = answer.split(" ", 2)[1]
            if status == "200" and json.loads(answer.partition("\r\n\r\n")[2])["usage"]["completion_tokens"] < 1:
                status = "empty"
    except Exception as error:
        status = type(error).__name__
    return time.perf_counter() - start, status


def soak(minutes: float) -> dict[str, Any]:
    """Train, serve and view for some minutes. Returns the samples by quarter and what has grown."""
    with tempfile.TemporaryDirectory() as temporary, open_server() as (server, port):
        command = [sys.executable, "-m", "palaestra", "train", *TRAIN, "--out", f"{temporary}/runs/run"]
        with open(f"{temporary}/train.log", "w") as log:
            training = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            while not Path(temporary, "runs/run/checkpoints").exists():
                assert training.poll() is None, Path(temporary, "train.log").read_text()[-2000:]
                time.sleep(0.5)
            with open_viewer(Path(temporary, "runs")) as viewer:
                processes = {"train": training.pid, "serve": server, "view": viewer.process.pid}
                figures = asyncio.run(watch(60 * minutes, processes, port, viewer))
            training.send_signal(signal.SIGINT)
            figures["train exit code"] = training.wait(120)
            store = Path(temporary, "runs/run/store.sqlite")
            figures["store_megabytes"] = round(store.stat().st_size / MEGABYTE, 1)
        finally:
            training.kill()
            training.wait()
    return figures


async def watch(seconds: float, processes: Mapping[str, int], port: int, viewer: Viewer) -> dict[str, Any]:
    """Send requests and open pages until the time is over, and sample the processes."""
    end, answers, pages = time.monotonic() + seconds, Counter[str](), Counter[str]()
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in processes}

    async def send_requests(first: int) -> None:
        number = first
        while time.monotonic() < end:
            answers[(await ask(port, number))[1]] += 1
            number += 4

    async def open_pages() -> None:
        paths = ("/", "/run/run/", "/run/run/episodes", "/run/run/log", "/runs.json", "/run/run/episodes?q=answer")
        while time.monotonic() < end:
            for path in paths:
                try:
                    await asyncio.to_thread(viewer.read, path)
                    pages["200"] += 1
                except (OSError, AssertionError) as error:
                    pages[f"{path}: {error!s:.200}"] += 1
                await asyncio.sleep(0.2)

    async def take_samples() -> None:
        while time.monotonic() < end:
            for name, process in processes.items():
                samples[name].append(measure_process(process))
            print(json.dumps({name: rows[-1] for name, rows in samples.items()}), flush=True)
            await asyncio.sleep(min(SAMPLE_SECONDS, seconds / 12))

    await asyncio.gather(*(send_requests(k) for k in range(4)), open_pages(), take_samples())
    quarters = {name: average_quarters(rows) for name, rows in samples.items()}
    faults = [fault for name, rows in quarters.items() for fault in find_growth(name, rows[1], rows[3])]
    faults += [f"{count} of the page {page}" for page, count in pages.items() if page != "200"]
    faults += [f"{count} answers with {status}" for status, count in answers.items() if status != "200"]
    return {
        "minutes": round(seconds / 60, 1), "answers": dict(answers), "pages": pages["200"], "quarters": quarters, "faults": faults,
    }  # fmt: skip


def measure_process(process: int) -> dict[str, float]:
    """The resident size, open files, and number of processes of a process and its descendants."""
    family = list_family(process)
    size = files = threads = 0
    for member in family:
        with suppress(OSError):
            size += int(Path(f"/proc/{member}/statm").read_text().split()[1]) * resource.getpagesize()
            files += len(os.listdir(f"/proc/{member}/fd"))
            threads += len(os.listdir(f"/proc/{member}/task"))
    return {
        "megabytes": round(size / MEGABYTE, 1), "files": files, "threads": threads, "processes": len(family),
    }  # fmt: skip


def list_family(process: int) -> list[int]:
    """A process and its descendants."""
    family = [process]
    for member in family:
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{member}/task"):
                family += map(int, Path(f"/proc/{member}/task/{thread}/children").read_text().split())
    return family


def average_quarters(rows: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """The median of each quantity in each quarter of the samples."""
    size = max(1, len(rows) // 4)
    quarters = [rows[k * size : (k + 1) * size] or rows[-1:] for k in range(4)]
    return [{name: statistics.median(row[name] for row in quarter) for name in rows[0]} for quarter in quarters]


def find_growth(name: str, before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """The quantities that grew by more than `MAX_GROWTH`, or by 5 % of the memory."""
    limits = {**MAX_GROWTH, "megabytes": max(MAX_GROWTH["megabytes"], 0.05 * before["megabytes"])}
    return [
        f"{name}: {quantity} grew from {before[quantity]} to {after[quantity]}"
        for quantity, limit in limits.items()
        if after[quantity] > before[quantity] + limit
    ]


if __name__ == "__main__":
    main()
