"""How long the viewer takes to open a run and to turn a page, and how much memory its server needs.

Three folders: a run with 10,000 episodes of 200 tokens and the values of each token, a run whose store has at least 10
million tokens (about 1 GB), and 500 runs. For the large store the speed of writing and of reading from Python are measured, too. Each is served by `palaestra view` in a process of its own and read over HTTP. Targets: a run opens in 1 s, a page
turns in 0.2 s, the server of the large store stays below 300 MB. The ratio is the smallest of target over measurement.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _common import arguments, finish, median, seconds

from palaestra.core.records import Segment, Trajectory
from palaestra.recipes.train.presets import fill_presets, make_settings
from palaestra.runs.files import to_data
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.run import Run

PROMPT, RESPONSE, GROUP, VOCABULARY = 40, 160, 8, 900
OPEN, TURN, MEMORY = 1.0, 0.2, 300.0
"""Targets: seconds to open a run, seconds to turn a page, megabytes of the server."""


def main() -> None:
    options = arguments(__doc__ or "", folder="where the runs are written and kept; by default a temporary folder")
    episodes, tokens, runs, repetitions = (2000, 1_000_000, 50, 5) if options.quick else (10_000, 10_000_000, 500, 15)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        write_run(folder / "episodes" / "run", episodes // 100)
        writing = write_run(folder / "large" / "run", tokens // (100 * (PROMPT + RESPONSE)))
        write_runs(folder / "runs", runs)
        cases = {name: measure(folder / name, repetitions) for name in ("episodes", "large")}
        cases["large"] |= {"tokens": tokens, "writing": writing, **measure_store(folder / "large" / "run")}
        cases["runs"] = measure_list(folder / "runs", repetitions)
    ratios = [TURN / cases[name][page] for name in ("episodes", "large") for page in ("page", "last page", "episode")]
    ratios += [OPEN / cases[name]["first " + page] for name in ("episodes", "large") for page in ("overview", "list")]
    ratios += [MEMORY / cases["large"]["megabytes"], OPEN / cases["runs"]["first list"], TURN / cases["runs"]["list"]]
    finish("viewer", min(ratios), episodes=episodes, tokens=tokens, runs=runs, cases=cases)


def make_episodes(count: int) -> list[Trajectory]:
    """Episodes of random tokens with all values."""
    generator, episodes = random.Random(0), []

    def draw(low: float, high: float) -> tuple[float, ...]:
        return tuple(float(f"{generator.uniform(low, high):.5g}") for _ in range(RESPONSE))

    for number in range(count):
        ids = [generator.randrange(VOCABULARY) for _ in range(PROMPT + RESPONSE)]
        given = Segment(tuple(ids[:PROMPT]), (False,) * PROMPT, (0.0,) * PROMPT)
        best = [
            tuple((generator.randrange(VOCABULARY), float(f"{-generator.random():.5g}")) for _ in range(3)) for _ in ids
        ]
        own = Segment(
            tuple(ids[PROMPT:]),
            (True,) * RESPONSE,
            draw(-3, 0),
            draw(-2, 2),
            draw(0, 3),
            draw(-3, 0),
            tuple(best[PROMPT:]),
        )
        info = {"prompt": f"question {number}", "response": "some words of an answer " * 20, "group": number // GROUP}
        episodes.append(Trajectory("palaestra/CoT-v0", 0, (generator.random(),), (given, own), True, infos=(info,)))
    return episodes


def write_run(folder: Path, iterations: int) -> dict[str, float]:
    """Write a train run with 100 episodes in each iteration. Returns the seconds of its iterations, unless it exists."""
    if folder.exists():
        return {}
    episodes, durations = make_episodes(100), []
    with Run.create(folder, "train", to_data(fill_presets(make_settings({"env": "palaestra/CoT-v0"})))) as run:
        for iteration in range(1, iterations + 1):
            start = time.perf_counter()
            add_iteration(run, iteration, episodes)
            durations.append(time.perf_counter() - start)
    first, last = durations[: iterations // 10], durations[-(iterations // 10) :]
    return {"seconds": round(sum(durations), 1), "first tenth": median(first), "last tenth": median(last)}


def measure_store(folder: Path) -> dict[str, float]:
    """Seconds of queries on the store of a run in this process."""
    with Run.open(folder, read_only=True) as run:
        iterations = run.store.trajectory_iterations()
        queries = {
            "open one episode": lambda: run.store.trajectory(iterations[-1], 7),
            "read an iteration of 100 episodes": lambda: run.store.trajectories(iterations[len(iterations) // 2]),
            "read a metric of all iterations": lambda: run.store.metrics("reward"),
            "list the iterations": run.store.trajectory_iterations,
        }
        return {name: median([seconds(query) for _ in range(5)]) for name, query in queries.items()}


def add_iteration(run: Run, iteration: int, episodes: list[Trajectory]) -> None:
    names = ("reward", "entropy", "reference_kl", "clip_fraction", "length", "tokens_per_second", "seconds_update")
    metrics = {name: random.Random(f"{iteration} {name}").random() for name in names}
    run.store.add_iteration(iteration, {**metrics, "episodes": 100.0}, episodes, LedgerEntry(f"{iteration}/train"))


def write_runs(folder: Path, count: int) -> None:
    """Write a run of 30 iterations, and copies of it with other seeds."""
    if folder.exists():
        return
    settings = fill_presets(make_settings({"env": "palaestra/CoT-v0"}))
    with Run.create(folder / "run-0", "train", to_data(settings)) as run:
        for iteration in range(1, 31):
            add_iteration(run, iteration, [])
        run.write_summary({"recipe": "train", "gain": 1.0, "gain_low": 0.5, "gain_high": 1.5, "unit": "percent"})
    for number in range(1, count):
        copy = folder / f"run-{number}"
        shutil.copytree(folder / "run-0", copy)
        stored = json.loads((copy / "settings.json").read_text())
        stored["settings"]["seed"] = number
        (copy / "settings.json").write_text(json.dumps(stored))


def measure(folder: Path, repetitions: int) -> dict[str, Any]:
    """Seconds of each kind of page of a run, and the largest size of the server."""
    with serve(folder) as viewer:
        figures = viewer.measure_first({"overview": "/run/run/", "list": "/run/run/episodes"})
        count = int(
            re.sub(r"\D", "", re.findall(r'class="detail">([\d\W]+) stored', viewer.read("/run/run/episodes"))[0])
        )
        pages = {
            "overview": "/run/run/", "page": "/run/run/episodes?page=2", "last page": f"/run/run/episodes?page={count // 50}",
            "iteration": "/run/run/episodes?iteration=9", "episode": "/run/run/episodes/9/9?colour=advantage",
            "rare word": "/run/run/episodes?q=no+such+word", "common word": "/run/run/episodes?q=answer",
        }  # fmt: skip
        figures |= viewer.measure(pages, repetitions)
        figures |= {"episodes": count, "store_megabytes": (folder / "run" / "store.sqlite").stat().st_size // 10**6}
        return {**figures, "megabytes": viewer.read_size()}


def measure_list(folder: Path, repetitions: int) -> dict[str, Any]:
    """Seconds of the list of runs, and the largest size of the server."""
    with serve(folder) as viewer:
        figures = viewer.measure_first({"list": "/"})
        pages = {"list": "/", "filtered": "/?q=run-7", "grouped": "/?group=model&sort=figure", "json": "/runs.json"}
        return {**figures, **viewer.measure(pages, repetitions), "megabytes": viewer.read_size()}


class Viewer:
    """A running `palaestra view`."""

    def __init__(self, process: subprocess.Popen[str], port: int, token: str) -> None:
        self.process, self.port = process, port
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", f"/?token={token}")
        self.cookie = (connection.getresponse().getheader("set-cookie") or "").split(";")[0]

    def read(self, path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("GET", path, headers={"cookie": self.cookie})
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, (path, answer.status, text[-500:])
        return text

    def measure_first(self, pages: dict[str, str]) -> dict[str, float]:
        """Seconds of the first request of each page."""
        return {f"first {name}": self._measure(path) for name, path in pages.items()}

    def measure(self, pages: dict[str, str], repetitions: int) -> dict[str, Any]:
        """Median seconds of each page, and the mean CPU seconds of the server, which hardly depend on other processes."""
        figures: dict[str, Any] = {"cpu": {}}
        for name, path in pages.items():
            before = self.read_cpu_seconds()
            figures[name] = round(median([self._measure(path) for _ in range(repetitions)]), 4)
            figures["cpu"][name] = round((self.read_cpu_seconds() - before) / repetitions, 4)
        return figures

    def read_cpu_seconds(self) -> float:
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def _measure(self, path: str) -> float:
        start = time.perf_counter()
        self.read(path)
        return round(time.perf_counter() - start, 4)

    def read_size(self) -> float:
        """The largest resident size of the server so far, in megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        [kilobytes] = re.findall(r"VmHWM:\s+(\d+)", status)
        return round(int(kilobytes) * 1024 / 1e6, 1)


@contextmanager
def serve(folder: Path) -> Iterator[Viewer]:
    command = [sys.executable, "-m", "palaestra", "view", str(folder), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        [(port, token)] = re.findall(r":(\d+)/\?token=(\S+)", line)
        viewer = Viewer(process, int(port), token)
        print(folder.name, line.strip(), flush=True)
        yield viewer
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
