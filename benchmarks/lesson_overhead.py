"""In a round of `teach`, how much of the time is neither generation, training nor scoring?

Two cases with the embedded student. `own`: the default settings, where the task's own generators write. `model`: a
language model writes, behind a service on this machine that answers at once, and every check is made of what it
writes. A service that thinks would only make the rest a smaller share.

Generation is what engines do, the calls of the writer included; training is `student.learn`; scoring is the task's
scorer and the checks that execute. All else is the rest: planning, prompts, validation of answers, the cache and the
store (also where they work within a call), the other checks, checkpoints, reports. Seconds are of the clock and of the
processor: on a busy machine the second kind is the one to believe. The ratio is 5 %, which is wanted at most, over the
median share of the rest in a round by the clock, of the worse case.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from _common import arguments, finish

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

LIMIT = 0.05
KINDS = ("generation", "training", "scoring", "rest")
Seconds = tuple[float, float]
"""By the clock, and of the processor."""


class Meter:
    """Whose time it is: of the outermost piece of work that was entered; of the rest wherever that is inside."""

    def __init__(self) -> None:
        self.round, self.running = 0, False
        self.open: list[str] = []
        self.spent: dict[int, dict[str, list[float]]] = defaultdict(lambda: {kind: [0.0, 0.0] for kind in KINDS})
        self.last: Seconds = (0.0, 0.0)

    def charge(self) -> None:
        """Charge the time since the last call to whoever it is that works."""
        now = (time.perf_counter(), time.process_time())
        kind = "rest" if not self.open or "rest" in self.open else self.open[0]
        if self.running:
            for place in (0, 1):
                self.spent[self.round][kind][place] += now[place] - self.last[place]
        self.last = now

    def wrap(self, owner: Any, name: str, kind: str) -> None:
        """Let the time of a method count as `kind`."""
        method = getattr(owner, name)

        @functools.wraps(method)
        def metered(*given: Any, **named: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return method(*given, **named)
            self.charge()
            self.open.append(kind)
            try:
                return method(*given, **named)
            finally:
                self.charge()
                self.open.pop()

        setattr(owner, name, metered)

    def watch(self) -> None:
        """Meter everything that `teach` consists of."""
        from palaestra.engines.openai import OpenAIEngine
        from palaestra.engines.transformers import TransformersEngine
        from palaestra.envs.lesson import LessonEnv
        from palaestra.recipes.teach.lessons import Lessons
        from palaestra.runs.cache import Cache
        from palaestra.students.student import ModelStudent
        from palaestra.tasks.math.task import MathSkills
        from palaestra.teachers.quality.execution import Executes

        self.wrap(TransformersEngine, "generate", "generation")
        self.wrap(OpenAIEngine, "generate_monitored", "generation")
        self.wrap(ModelStudent, "learn", "training")
        self.wrap(MathSkills, "score", "scoring")
        self.wrap(Executes, "judge", "scoring")
        for name in ("get", "hit", "begin", "end", "spent"):
            self.wrap(Cache, name, "rest")
        reset, write, step = LessonEnv.reset, Lessons.write, LessonEnv.step

        def first(env: Any, **named: Any) -> Any:
            self.charge()
            self.running, self.round = True, 0
            return reset(env, **named)

        def begin(lessons: Any, env: Any, state: Any, *given: Any, **named: Any) -> Any:
            self.charge()
            self.running, self.round = True, state.round + 1
            return write(lessons, env, state, *given, **named)

        def end(env: Any, action: Any) -> Any:
            result = step(env, action)
            self.charge()
            self.running = False
            return result

        for owner, name, method in ((LessonEnv, "reset", first), (Lessons, "write", begin), (LessonEnv, "step", end)):
            setattr(owner, name, method)


def serve(ready: Any) -> None:
    """A service that writes what the task's own generators would, without thinking; in a process of its own."""
    import numpy as np
    from chat_server import Call, Reply, Server

    from palaestra.tasks.math.task import MathSkills

    task = MathSkills()

    def script(call: Call, times: int) -> Reply:
        wanted = int((re.search(r"rite (\d+) new", call.asked) or ["", "1"])[1])
        skill = (re.search(r'skill (?:to be taught is )?"(\w+)"', call.asked) or ["", "addition"])[1]
        generator = np.random.default_rng(int(call.body["seed"]))
        data = []
        for example in task.write_examples(skill, "", wanted, generator):
            reasoning, _, answer = example.response.rpartition(". Answer: ")
            data.append({"question": example.messages[0].text, "reasoning": reasoning or answer, "answer": answer})
        return Reply(json.dumps({"hypothesis": "", "data": data}))

    with Server(script) as server:
        ready.send(server.model)
        ready.recv()


def run(meter: Meter, **settings: Any) -> dict[int, dict[str, list[float]]]:
    from palaestra.recipes.teach.recipe import teach

    meter.spent.clear()
    with tempfile.TemporaryDirectory() as folder:
        result = teach(out=Path(folder) / "run", cache=str(Path(folder) / "calls.sqlite"), **settings)
        print(
            f"  {result.summary['examples']} examples, {result.summary['calls']} calls, "
            f"{result.summary['seconds']:.0f} s in all",
            flush=True,
        )
    return {round_: dict(kinds) for round_, kinds in sorted(meter.spent.items())}


def share(kinds: dict[str, list[float]], place: int) -> float:
    total = sum(seconds[place] for seconds in kinds.values())
    return kinds["rest"][place] / total


def main() -> None:
    options = arguments(__doc__ or "")
    size: dict[str, Any] = {"rounds": 2, "lesson_size": 100, "validation": 8, "test": 12} if options.quick else {}
    seeds = range(1) if options.quick else range(3)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    service = context.Process(target=serve, args=(there,), daemon=True)
    service.start()
    cases: dict[str, dict[str, Any]] = {
        "own": {},
        "model": {"writer": here.recv(), "quality": "on", "teacher": "skill_list"},
    }
    meter = Meter()
    meter.watch()
    shares: dict[str, list[Seconds]] = {name: [] for name in cases}
    totals: dict[str, list[Seconds]] = {name: [] for name in cases}
    for seed in seeds:
        for name, settings in cases.items():
            print(f"{name}, seed {seed}", flush=True)
            rounds = run(meter, seed=seed, threads=options.threads, **size, **settings)
            for round_, kinds in rounds.items():
                both = (share(kinds, 0), share(kinds, 1))
                if round_:  # Before the first round there is only an evaluation.
                    shares[name].append(both)
                times = ", ".join(f"{kind} {kinds[kind][0]:.2f} ({kinds[kind][1]:.2f})" for kind in KINDS)
                print(f"  round {round_}: {times} s; the rest is {both[0]:.1%} ({both[1]:.1%})", flush=True)
            whole = {kind: [sum(kinds[kind][k] for kinds in rounds.values()) for k in (0, 1)] for kind in KINDS}
            totals[name].append((share(whole, 0), share(whole, 1)))
    here.send("over")
    service.join()

    def middle(samples: list[Seconds], place: int) -> float:
        return round(statistics.median(both[place] for both in samples), 4)

    for name in cases:
        print(
            f"{name}: the rest is {middle(shares[name], 0):.1%} of a round by the clock and {middle(shares[name], 1):.1%} of the "
            f"processor's time (medians of {len(shares[name])}; largest {max(s[0] for s in shares[name]):.1%} and "
            f"{max(s[1] for s in shares[name]):.1%}), {middle(totals[name], 0):.1%} and {middle(totals[name], 1):.1%} of the whole"
        )
    finish(
        "lesson_overhead",
        LIMIT / max(middle(shares[name], 0) for name in cases),
        seeds=len(seeds),
        clock={name: middle(shares[name], 0) for name in cases},
        processor={name: middle(shares[name], 1) for name in cases},
        clock_largest={name: round(max(s[0] for s in shares[name]), 4) for name in cases},
        processor_largest={name: round(max(s[1] for s in shares[name]), 4) for name in cases},
    )


if __name__ == "__main__":
    main()
