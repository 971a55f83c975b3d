"""MLGym submissions in a separate sandbox: plain functions work, and they cannot reach the score."""

from __future__ import annotations

import json
import math
import os
import pickle
import time
from collections import Counter, OrderedDict, namedtuple
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.integrations.mlgym import MLGymTask, load_mlgym
from palaestra.integrations.mlgym.judge import MLGymJudge
from palaestra.research.judge.evaluation import make_judge, sandbox_for
from palaestra.research.judge.inside.stub import SubmissionPipe, _error
from palaestra.research.judge.inside.values import BUILDERS, decode, encode
from palaestra.research.tasks.task import Grade, InvalidSubmission, Isolation, JudgeResult

TASK = """
id: gameTask
name: A game
description: Play it well.
task_entrypoint: PythonSubmissionTasks
training_timeout: {seconds}
evaluation_paths: [evaluate.py]
dataset_configs: [datasets/rows.yaml]
starter_code: [data/game/evaluate.py, data/game/target.py, data/game/helper.py]
baseline_scores: [{{{metric}: 0.5}}]
secret_files: [data/game/labels.json, data/game/opponents.py, data/game/public/hidden.txt]
"""
FILES = {
    "configs/datasets/rows.yaml": "name: rows\ndata_path: data/game/public\n",
    "data/game/public/rows.txt": "public rows",
    "data/game/public/hidden.txt": "5417",
    "data/game/helper.py": "def double(x):\n    return 2 * x\n",
    "data/game/target.py": "def play(k):\n    return 0.25\n",
    "data/game/labels.json": "[5417]",
    "data/game/opponents.py": "def answer(k):\n    return 5417\n",
}
FORGED = '{"Score": 999}'
PLAIN = "import json\nfrom target import play\nprint(json.dumps({'Score': play(1)}))\n"


def get_task_name(
    root: Path, evaluator: str = PLAIN, own: str = "", seconds: int = 30, metric: str = "Score", **more: str
) -> MLGymTask:
    """A checkout with this evaluator, and this target.py of its own."""
    files = {
        **FILES,
        "data/game/evaluate.py": evaluator,
        **{f"data/game/{name}.py": text for name, text in more.items()},
    }
    files["configs/tasks/game.yaml"] = TASK.format(seconds=seconds, metric=metric)
    if own:
        files["data/game/target.py"] = own
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return load_mlgym(root, "game")


def judge_files(task: MLGymTask, target: str, **more: str) -> JudgeResult:
    files = {"target.py": target, **{f"{name}.py": text for name, text in more.items()}}
    judge = make_judge(task, sandbox_for(task))
    outcome = judge.judge({name: text.encode() for name, text in files.items()}, "test")
    assert judge.exposed
    return outcome


def score(task: MLGymTask, target: str, **more: str) -> float:
    created = judge_files(task, target, **more)
    assert isinstance(created, Grade), created
    assert created.isolation is Isolation.SEPARATE
    return created.score


def make_evaluator(body: str) -> str:
    """An evaluator that gives a score of 1 if nothing in it fails."""
    return f"import json\n{body}\nprint(json.dumps({{'Score': 1}}))\n"


# What evaluators do.


def test_the_module_is_found_however_an_evaluator_looks_for_it(tmp_path: Path) -> None:
    body = """
import importlib, runpy, target
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from target import *
assert target.play(2) == play(2) == importlib.import_module("target").play(2) == 3
spec = spec_from_file_location("another", "target.py")
module = module_from_spec(spec)
spec.loader.exec_module(module)
assert module.play(2) == runpy.run_path("target.py")["play"](2) == 3
del play
exec(open("target.py").read())
assert play(2) == 3 and target.LIMIT == (1, [2]) and target.play.__name__ == "play"
with ThreadPoolExecutor(4) as threads:
    assert list(threads.map(play, range(20))) == list(range(1, 21))
try: target.nothing
except AttributeError: pass
else: raise SystemExit(5)
try: from target import nothing
except ImportError: pass
else: raise SystemExit(6)
"""
    target = (
        "import mine\nfrom helper import double\nLIMIT = (1, [2])\ndef play(k):\n    return mine.half(double(k)) + 1\n"
    )
    assert score(get_task_name(tmp_path, make_evaluator(body)), target, mine="def half(x):\n    return x // 2\n") == 1


@pytest.mark.parametrize(
    ("ending", "good"),
    [
        ("import logging; logging.warning('a warning'); exit(0)", True),
        ("import os, sys; sys.stdout.flush(); os._exit(0)", True),
        ("import subprocess; subprocess.Popen(['sleep', '60'])", True),
        ("raise SystemExit(3)", False),
        ("import os; os.kill(os.getpid(), 11)", False),
    ],
)
def test_an_evaluator_ends_as_it_likes(tmp_path: Path, ending: str, good: bool) -> None:
    text = f"if __name__ == '__main__':\n    from target import play\n    print('{{\"Score\":', play(1), '}}')\n    {ending}\n"
    created = judge_files(get_task_name(tmp_path, text), "def play(k):\n    return 0.125\n")
    assert isinstance(created, Grade if good else InvalidSubmission), created


def test_scores_are_heard_from_subprocesses_and_at_the_exit(tmp_path: Path) -> None:
    text = "import atexit, subprocess, sys, target\n{}\nprint('x' * 300000)\nscore = target.play(1)\n"
    at_exit = text.format("atexit.register(lambda: print('\\n{\"Score\":', score, '}'))")
    assert score(get_task_name(tmp_path, at_exit), "def play(k):\n    return 0.5\n") == 0.5
    other = text.format("") + "print(flush=True)\nsubprocess.run(['echo', '{\"Score\": %s}' % score])\n"
    assert score(get_task_name(tmp_path, other), "def play(k):\n    return 0.75\n") == 0.75


def test_exceptions_are_those_that_the_submission_raised(tmp_path: Path) -> None:
    body = """
from target import fail
found = []
for k in range(6):
    try: fail(k)
    except Exception as error: found.append((type(error).__name__, str(error)[:9]))
assert found == [("ValueError", "no"), ("KeyError", "'x'"), ("RuntimeError", "own"), ("ValueError", "kind of"),
                 ("RuntimeError", "UnicodeDe"), ("StopIteration", "")], found
"""
    target = """
class Own(Exception): pass
class Kind(ValueError): pass
def fail(k):
    if k == 0: raise ValueError("no")
    if k == 1: return {}["x"]
    if k == 2: raise Own("own")
    if k == 3: raise Kind("kind of")
    if k == 4: b"\\xff".decode()
    raise StopIteration
"""
    assert score(get_task_name(tmp_path, make_evaluator(body)), target) == 1


def test_arguments_are_copies(tmp_path: Path) -> None:
    body = "import json, target\nhistory = [(0, 0)]\nfor _ in range(150): target.play(history)\nprint(json.dumps({'Score': len(history)}))\n"
    task = get_task_name(tmp_path, body, own="def play(history):\n    return 1\n")
    assert score(task, "def play(history):\n    history.extend([(1, 0)] * 50)\n    return 1\n") == 1


def test_task_that_modifies_arguments_runs_in_one_process(tmp_path: Path) -> None:
    text = "import json, target\nrows = [3, 1, 2]\ntarget.arrange(rows)\nprint(json.dumps({'Score': float(rows == [1, 2, 3])}))\n"
    task = get_task_name(tmp_path, text, own="def arrange(rows):\n    rows.reverse()\n")
    created = judge_files(task, "def arrange(rows):\n    rows.sort()\n")
    assert isinstance(created, Grade)
    assert (created.score, created.isolation) == (1.0, Isolation.SHARED)


def test_arrays_and_numbers_of_numpy_come_as_themselves(tmp_path: Path) -> None:
    body = """
import numpy, target
assert target.play(numpy.arange(3.0), numpy.int64(2)).tolist() == [0, 2, 4]
assert type(target.one()) is numpy.int64 and not isinstance(target.one(), int)
"""
    target = "import numpy\ndef play(a, k): return a * k\ndef one(): return numpy.int64(1)\n"
    assert score(get_task_name(tmp_path, make_evaluator(body)), target) == 1


def test_aborted_call_does_not_answer_the_next(tmp_path: Path) -> None:
    body = """
import signal, target
def stop(*_): raise TimeoutError
signal.signal(signal.SIGALRM, stop)
signal.setitimer(signal.ITIMER_REAL, 0.1)
try: target.slow()
except TimeoutError: pass
else: raise SystemExit(5)
assert [target.play(k) for k in range(3)] == [0, 1, 2]
"""
    assert (
        score(
            get_task_name(tmp_path, make_evaluator(body)),
            "import time\ndef slow(): time.sleep(0.3)\ndef play(k): return k\n",
        )
        == 1
    )


def test_a_submission_draws_the_same_every_time(tmp_path: Path) -> None:
    task = get_task_name(tmp_path)
    target = (
        "import random, numpy\nfirst = random.random()\n"
        "def play(k):\n    return first + random.random() + numpy.random.rand() + hash('text') % 1000\n"
    )
    assert score(task, target) == score(task, target)


def test_arguments_may_have_any_name(tmp_path: Path) -> None:
    task = get_task_name(
        tmp_path, make_evaluator("from target import f\nassert f(self=1, name=2, arguments=3, named=4) == 10")
    )
    assert score(task, "def f(**named):\n    return sum(named.values())\n") == 1


@pytest.mark.parametrize(
    ("way", "listed"),
    [
        ("from target import *", "__all__ = ['json', 'print', 'round', 'play', 'mean', '__name__']\n"),
        ("from target import *", ""),
        ("exec(open('target.py').read())", ""),
    ],
)
def test_submission_names_do_not_shadow_the_evaluator(tmp_path: Path, way: str, listed: str) -> None:
    text = (
        f"import json\ndef mean(x):\n    return sum(x) / len(x)\nimport target\n{way}\n"
        "assert __name__ == '__main__' and target.round(1) == 999\n"
        "print(json.dumps({'Score': round(mean([play(1), play(3)]), 3)}))\n"
    )
    target = f"""{listed}
class json:
    def dumps(*_): return '{FORGED}'
def round(*_): return 999
mean = sum = print = max = round
__name__ = "forged"
def play(k): return k
"""
    assert score(get_task_name(tmp_path, text), target) == 2


# Where it cannot be done apart.

NOT_PLAIN = {
    "a function as an argument": ("play(lambda x: x / 2)", "def play(f):\n    return f({k})\n"),
    "an object": ("play().value", "class Thing: value = {k} / 2\ndef play():\n    return Thing()\n"),
    "a class": ("play({'a': 1}).act(1)", "class play:\n    def __init__(self, x): pass\n    def act(self, x): return {k} / 2\n"),
    "a generator": ("next(play())", "def play():\n    yield {k} / 2\n"),
    "processes": ("__import__('multiprocessing').get_context('fork').Pool(2).map(play, [1])[0]", "def play(x):\n    return {k} / 2\n"),
    "a program": (
        "float(__import__('subprocess').check_output([__import__('sys').executable, 'target.py']))",
        "if __name__ == '__main__':\n    print({k} / 2)\ndef play(): pass\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", NOT_PLAIN)
def test_objects_and_classes_run_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(MLGymJudge, "separable", {})
    call, target = NOT_PLAIN[kind]
    value = target.replace("f({k})", "f(2 * {k})") if "lambda" in call else target
    task = get_task_name(
        tmp_path,
        f"import json\nfrom target import play\nprint(json.dumps({{'Score': {call}}}))\n",
        own=value.format(k=1),
    )
    created = judge_files(task, value.format(k=3) if "lambda" not in call else "def play(f):\n    return f(3)\n")
    assert isinstance(created, Grade), created
    assert (created.score, created.isolation) == (1.5, Isolation.SHARED)
    assert MLGymJudge.separable == {task.digest(): False}
    monkeypatch.setattr("palaestra.integrations.mlgym.judge.run_apart", None)  # It is not tried again.
    assert isinstance(judge_files(task, value.format(k=5)), Grade)


@pytest.mark.parametrize(
    "target",
    [
        "def play(k):\n    return print",
        "def play(k):\n    return range(10**12)",
        "deep = []\nfor _ in range(100_000): deep = [deep]\ndef play(k):\n    return deep",
        "def play(k):\n    return 1 << 30_000_000",
        "def play(k):\n    raise SystemExit",
        "def play(k):\n    k.append(1)\n    return print",
    ],
)
def test_submission_cannot_force_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setattr(MLGymJudge, "separable", {})
    task = get_task_name(tmp_path)
    created = judge_files(task, target)
    assert isinstance(created, InvalidSubmission), created
    assert MLGymJudge.separable == {task.digest(): True}


def test_task_without_a_starter_file_runs_in_one_process(tmp_path: Path) -> None:
    get_task_name(tmp_path)
    file = tmp_path / "configs/tasks/game.yaml"
    file.write_text(file.read_text().replace("data/game/target.py, ", "").replace("Play it well.", "Write target.py."))
    task = load_mlgym(tmp_path, "game")
    assert task.submission.files == ("target.py",)
    created = judge_files(task, "def play(k):\n    return 0.5\n")
    assert isinstance(created, Grade)
    assert (created.score, created.isolation) == (0.5, Isolation.SHARED)


@pytest.mark.parametrize(
    ("metric", "together"),
    [("Time", True), ("runtime_seconds", True), ("solveTime", True), ("mean latency", True), ("Score", False),
     ("sentiment", False), ("estimate", False), ("reward", False)],
)  # fmt: skip
def test_where_time_counts_no_messages_are_measured(tmp_path: Path, metric: str, together: bool) -> None:
    task = get_task_name(tmp_path, metric=metric)
    assert make_judge(task, sandbox_for(task)).together is together


# What submissions do.

SECRETIVE = """
import json, opponents, sys
import target
hidden = json.load(open("labels.json"))[0]
assert open("data/hidden.txt").read() == "5417"
print(json.dumps({"Score": float(target.play(opponents.answer(0) - 5417) == hidden)}))
"""


@pytest.mark.parametrize(
    "target",
    [
        "import json\ndef play(k):\n    return json.load(open('/home/agent/workspace/labels.json'))[0]",
        "def play(k):\n    import opponents\n    return opponents.answer(k)",
        "def play(k):\n    return open('evaluate.py').read()",
        "import gc, sys\ndef play(k):\n    frame = sys._getframe()\n    while frame:\n        if 'hidden' in frame.f_globals: "
        "return frame.f_globals['hidden']\n        frame = frame.f_back",
        "import glob, os, re\ndef play(k):\n    found = [open(n, errors='replace').read() for top in ('/home', '/tmp', '/opt', "
        "'/dev/shm') for n in glob.glob(top + '/**', recursive=True) if n.count('/') < 7 and os.path.isfile(n) and "
        "os.path.getsize(n) < 10000 and os.access(n, os.R_OK) and 'target' not in n]\n"
        "    return 5417 if any('54' + '17' in text for text in found) else 0",
    ],
)
def test_nothing_of_the_evaluator_is_where_a_submission_runs(tmp_path: Path, target: str) -> None:
    created = judge_files(get_task_name(tmp_path, SECRETIVE), target, evaluate="print(5417)")
    assert not isinstance(created, Grade) or created.score == 0, created


def test_what_the_agent_saw_is_where_its_submission_runs(tmp_path: Path) -> None:
    target = "import helper\ndef play(k):\n    return 5417 if open('data/rows.txt').read() == 'public rows' else 0"
    assert score(get_task_name(tmp_path, SECRETIVE), target) == 1


EVERYWHERE = "import os\nfor file in range(1024):\n    try: os.write(file, DATA)\n    except OSError: pass\n"


@pytest.mark.parametrize(
    "trick",
    [
        f"import json\njson.dumps = lambda *a, **k: '{FORGED}'",
        f"exec(\"print = json = None\\ndef dumps(*a): return '{FORGED}'\", vars(__import__('__main__')))",
        "import __main__\n__main__.encode = lambda value: b'999'",
        f"import os\nif not os.fork():\n    print('{FORGED}')\n    os._exit(0)",
        "import os, signal\nfor process in (1, os.getppid()):\n    try: os.kill(process, signal.SIGKILL)\n    except OSError: pass",
        "import threading\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)], daemon=False).start()",
        f"import atexit\natexit.register(print, '{FORGED}')\nimport os\nos._exit(0)",
        EVERYWHERE.replace("DATA", f"b'{FORGED}\\n'"),
        EVERYWHERE.replace("DATA", "b'3 =999\\n'"),
        EVERYWHERE.replace("DATA", "b'3 =999\\n'") + "os._exit(0)",
        EVERYWHERE.replace("DATA", 'b\'{"value": null}\\n{"gone": "passed"}\\n\''),
    ],
)
def test_no_trick_gives_another_score(tmp_path: Path, trick: str) -> None:
    start = time.monotonic()
    created = judge_files(get_task_name(tmp_path), f"{trick}\ndef play(k):\n    return 0.125\n")
    assert (
        isinstance(created, InvalidSubmission)
        or created == Grade(0.125, {"Score": 0.125}, pytest.approx(0, abs=30))
        or (
            "__main__.encode" in trick
            and isinstance(created, Grade)
            and created.score == 999  # Which it could return as well.
        )
    ), created
    assert time.monotonic() - start < 15


ANSWERS = """
import os, sys
def say(text):
    data = text.encode() if isinstance(text, str) else text
    line = int(sys.argv[-2])
    while data:
        data = data[os.write(line, data):]
"""


@pytest.mark.parametrize("lie", ["'garbage\\n'", "'9 =1\\n'", "'5 =1\\n5 =1\\n'", "'x' * (9 << 20)"])
def test_invalid_answer_breaks_the_pipe(tmp_path: Path, lie: str) -> None:
    body = """
import time, target
given, errors = [1], []
for function in (target.play, target.other, target.other):
    start = time.monotonic()
    try: function(given)
    except RuntimeError as error: errors.append(str(error))
assert len(errors) == 3 and all("cannot be called" in error for error in errors), errors
assert time.monotonic() - start < 0.5
"""
    target = f"{ANSWERS}\ndef play(x): say({lie})\ndef other(x): return 1\n"
    assert score(get_task_name(tmp_path, make_evaluator(body)), target) == 1


@pytest.mark.parametrize(
    "expected",
    [
        b"", b"null", b"1", b"1=2", b"1 2", b"1 =", b"2 =1", b"-1 =1", b"1 =1 2", b"1 =\xff", b'1 ={"value": null}', b"1 ={}",
        b'1 ={"gone": "passed"}', b'1 ={"tuple": 5}', b'1 ={"tuple": [1], "set": []}', b'1 ={"dict": [[[], 1]]}',
        b'1 ={"array": ["|O8", [1], "AAAAAAAAAAA="]}', b'1 ={"array": ["<f8", [1000000000000], ""]}',
        b'1 ={"element": ["<f8", [1], "AAAAAAAAAAA="]}', b'1 ={"complex": ["x", 1]}', b'1 ={"bytes": "?"}',
        b"1 =" + b"[" * 40_000, b"1 =" + b"9" * 5000, b"1 =1\n2 =1", b"9" * 10_000 + b" =1",
    ],
)  # fmt: skip
def test_any_bytes_raise_the_same_kind_of_error(expected: bytes) -> None:
    (read, to), (back, answer) = os.pipe(), os.pipe()
    try:
        os.write(answer, expected + b"\n")
        os.close(answer)
        line = SubmissionPipe(to, back)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="cannot be called"):
                line.ask(".play", ([1], 7), {})
    finally:
        for file in (read, to, back):
            os.close(file)


@pytest.mark.parametrize("value", [print, object(), os, json.JSONDecoder(), iter([]), IntEnum, pickle.Pickler])
def test_arguments_that_are_not_plain_are_never_sent(value: object) -> None:
    read, to = os.pipe()
    line = SubmissionPipe(to, read)
    with pytest.raises((TypeError, pickle.PicklingError, AttributeError)):
        line.ask(".play", ([{"a": (value,)}],), {})
    os.close(to)
    assert os.read(read, 10) == b""
    os.close(read)


@pytest.mark.parametrize(
    "way",
    [
        "import os; os._exit(0)",
        "import os; os.kill(os.getpid(), 9)",
        "return 'x' * (9 << 20)",
    ],
)
def test_ended_submission_raises_every_time(tmp_path: Path, way: str) -> None:
    body = "import target\nerrors = 0\nfor f in (target.play, target.other):\n    try: f(0)\n    except RuntimeError: errors += 1\nassert errors == 2"
    assert (
        score(get_task_name(tmp_path, make_evaluator(body)), f"def play(k):\n    {way}\ndef other(k): return 1\n") == 1
    )


def test_silent_or_endless_submission_ends_with_the_evaluator(tmp_path: Path) -> None:
    start = time.monotonic()
    created = judge_files(get_task_name(tmp_path, seconds=1), "def play(k):\n    while True: pass\n")
    assert isinstance(created, InvalidSubmission)
    assert "limit of cpu_time" in created.reason
    stubborn = (
        "import os, sys, threading\nkept = os.dup(int(sys.argv[-2]))\ndef spin():\n    while True: pass\n"
        "def play(k):\n    threading.Thread(target=spin).start()\n    return 0.5\n"
    )
    assert score(get_task_name(tmp_path), stubborn) == 0.5
    assert time.monotonic() - start < 40


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("def play(k:\n", "the evaluator did not come to its end (exit code 1, SyntaxError)"),
        ("raise type('X5417', (Exception,), {})('5417')", "the evaluator did not come to its end (exit code 1, RuntimeError)"),
        ("raise SystemExit('5417')", "the evaluator did not come to its end (exit code 1, RuntimeError)"),
        ("def play(k):\n    raise KeyError('5417')", "the evaluator did not come to its end (exit code 1, KeyError)"),
        ("def other(k):\n    pass", "the evaluator did not come to its end (exit code 1, ImportError)"),
    ],
)  # fmt: skip
def test_of_a_failure_only_the_name_is_told(tmp_path: Path, target: str, shown: str) -> None:
    created = judge_files(get_task_name(tmp_path), target)
    assert isinstance(created, InvalidSubmission)
    assert created.exposed
    assert created.reason.startswith(shown)
    assert "5417" not in created.reason


# Values.


def round_trip(value: Any) -> Any:
    return decode(encode(value))


def is_identical(item: Any, other: Any) -> bool:
    """The same value, type for type."""
    if type(item) is not type(other):
        return False
    if isinstance(item, np.ndarray | np.generic):
        return item.dtype == other.dtype and item.shape == other.shape and item.tobytes() == other.tobytes()
    if isinstance(item, float):
        return math.isnan(item) and math.isnan(other) if item != item else repr(item) == repr(other)
    if isinstance(item, complex):
        return is_identical(item.real, other.real) and is_identical(item.imag, other.imag)
    if isinstance(item, list | tuple):
        return len(item) == len(other) and all(map(is_identical, item, other))
    if isinstance(item, dict):
        return is_identical([*item], [*other]) and is_identical([*item.values()], [*other.values()])
    if isinstance(item, set | frozenset):
        same = item == other or sorted(map(repr, item)) == sorted(map(repr, other))  # NaN equals nothing.
        return same and {type(x) for x in item} == {type(x) for x in other}
    return bool(item == other)


keys = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.binary()
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda item: st.tuples(item, item) | st.frozensets(item, max_size=3),
    max_leaves=4,
)
elements = st.sampled_from([np.float64(1.5), np.int8(-3), np.bool_(True), np.complex64(2j)])
arrays = st.sampled_from([np.zeros((2, 0)), np.array(1.5), np.arange(6.0).reshape(2, 3).T,
                          np.array([True]), np.array([1 + 2j], np.complex64), np.array([np.nan], ">f2")])  # fmt: skip
plain = st.recursive(
    keys
    | st.floats()
    | st.complex_numbers()
    | st.binary().map(bytearray)
    | st.integers(-(10**400), 10**400)
    | elements
    | arrays,
    lambda item: st.lists(item) | st.tuples(item, item) | st.dictionaries(keys, item) | st.sets(keys),
    max_leaves=20,
)


@given(plain)
def test_any_plain_value_comes_through_as_it_is(value: Any) -> None:
    assert is_identical(round_trip(value), value)


def test_subclasses_are_sent_as_their_plain_base() -> None:
    point = namedtuple("point", "x y")(1, 2)
    level = IntEnum("level", "LOW")
    for value, base in ((point, (1, 2)), (OrderedDict(a=1), {"a": 1}), (Counter("aa"), {"a": 2}), (level.LOW, 1)):  # type: ignore[attr-defined]
        assert is_identical(round_trip([value]), [base])
    for value in (object(), print, np.array([None]), np.zeros(2, "i4,i4"), iter([]), json, range(3)):
        with pytest.raises(TypeError):
            encode({"a": [value]})


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda item: st.lists(item) | st.dictionaries(st.text() | st.sampled_from(sorted(BUILDERS)), item),
    )
)
def test_whatever_comes_is_a_value_or_refused(wire: Any) -> None:
    try:
        value = decode(json.dumps(wire).encode())
    except ValueError:
        return
    assert is_identical(round_trip(value), value)


def test_only_exceptions_of_python_are_raised() -> None:
    assert [
        type(_error([name, "x"]))
        for name in ("ValueError", "SystemExit", "KeyboardInterrupt", "print", "Own", "UnicodeDecodeError")
    ] == [
        ValueError,
        *[RuntimeError] * 5,
    ]
    assert type(_error({"a": 1})) is type(_error([[], 1])) is RuntimeError
