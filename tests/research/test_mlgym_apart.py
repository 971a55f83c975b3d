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

from palaestra.research.judge.evaluation import make_judge, sandbox_for
from palaestra.research.judge.inside.stub import SubmissionPipe, _error
from palaestra.research.judge.inside.values import BUILDERS, decode, encode
from palaestra.research.mlgym import MLGymTask, load_mlgym
from palaestra.research.mlgym.judge import MLGymJudge
from palaestra.research.tasks.records import Grade, InvalidSubmission, Isolation, JudgeResult

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


def judged(task: MLGymTask, target: str, **more: str) -> JudgeResult:
    files = {"target.py": target, **{f"{name}.py": text for name, text in more.items()}}
    judge = make_judge(task, sandbox_for(task))
    outcome = judge.judge({name: text.encode() for name, text in files.items()}, "test")
    assert judge.exposed
    return outcome


def score(task: MLGymTask, target: str, **more: str) -> float:
    made = judged(task, target, **more)
    assert isinstance(made, Grade), made
    assert made.isolation is Isolation.SEPARATE
    return made.score


def checked(body: str) -> str:
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
    assert score(get_task_name(tmp_path, checked(body)), target, mine="def half(x):\n    return x // 2\n") == 1


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
    made = judged(get_task_name(tmp_path, text), "def play(k):\n    return 0.125\n")
    assert isinstance(made, Grade if good else InvalidSubmission), made


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
    assert score(get_task_name(tmp_path, checked(body)), target) == 1


def test_arguments_are_copies_and_changing_them_changes_no_score(tmp_path: Path) -> None:
    body = "import json, target\nhistory = [(0, 0)]\nfor _ in range(150): target.play(history)\nprint(json.dumps({'Score': len(history)}))\n"
    task = get_task_name(tmp_path, body, own="def play(history):\n    return 1\n")
    assert score(task, "def play(history):\n    history.extend([(1, 0)] * 50)\n    return 1\n") == 1


def test_where_the_task_s_own_file_changes_its_arguments_both_run_in_one_process(tmp_path: Path) -> None:
    text = "import json, target\nrows = [3, 1, 2]\ntarget.arrange(rows)\nprint(json.dumps({'Score': float(rows == [1, 2, 3])}))\n"
    task = get_task_name(tmp_path, text, own="def arrange(rows):\n    rows.reverse()\n")
    made = judged(task, "def arrange(rows):\n    rows.sort()\n")
    assert isinstance(made, Grade)
    assert (made.score, made.isolation) == (1.0, Isolation.SHARED)


def test_arrays_and_numbers_of_numpy_come_as_themselves(tmp_path: Path) -> None:
    body = """
import numpy, target
assert target.play(numpy.arange(3.0), numpy.int64(2)).tolist() == [0, 2, 4]
assert type(target.one()) is numpy.int64 and not isinstance(target.one(), int)
"""
    target = "import numpy\ndef play(a, k): return a * k\ndef one(): return numpy.int64(1)\n"
    assert score(get_task_name(tmp_path, checked(body)), target) == 1


def test_a_call_that_the_evaluator_breaks_off_is_over_and_the_next_has_its_own_answer(tmp_path: Path) -> None:
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
            get_task_name(tmp_path, checked(body)), "import time\ndef slow(): time.sleep(0.3)\ndef play(k): return k\n"
        )
        == 1
    )


def test_a_submission_draws_the_same_every_time(tmp_path: Path) -> None:
    task = get_task_name(tmp_path)
    target = "import random, numpy\nfirst = random.random()\n" \
             "def play(k):\n    return first + random.random() + numpy.random.rand() + hash('text') % 1000\n"  # fmt: skip
    assert score(task, target) == score(task, target)


def test_arguments_may_have_any_name(tmp_path: Path) -> None:
    task = get_task_name(
        tmp_path, checked("from target import f\nassert f(self=1, name=2, arguments=3, named=4) == 10")
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
def test_names_of_a_submission_give_no_other_meaning_to_those_of_the_evaluator(
    tmp_path: Path, way: str, listed: str
) -> None:
    text = f"import json\ndef mean(x):\n    return sum(x) / len(x)\nimport target\n{way}\n" \
           "assert __name__ == '__main__' and target.round(1) == 999\n" \
           "print(json.dumps({'Score': round(mean([play(1), play(3)]), 3)}))\n"  # fmt: skip
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
def test_what_is_no_plain_function_is_judged_in_one_process_and_that_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(MLGymJudge, "separable", {})
    call, target = NOT_PLAIN[kind]
    value = target.replace("f({k})", "f(2 * {k})") if "lambda" in call else target
    task = get_task_name(
        tmp_path,
        f"import json\nfrom target import play\nprint(json.dumps({{'Score': {call}}}))\n",
        own=value.format(k=1),
    )
    made = judged(task, value.format(k=3) if "lambda" not in call else "def play(f):\n    return f(3)\n")
    assert isinstance(made, Grade), made
    assert (made.score, made.isolation) == (1.5, Isolation.SHARED)
    assert MLGymJudge.separable == {task.digest(): False}
    monkeypatch.setattr("palaestra.research.mlgym.judge.run_apart", None)  # It is not tried again.
    assert isinstance(judged(task, value.format(k=5)), Grade)


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
def test_no_submission_brings_itself_into_the_process_of_the_evaluator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setattr(MLGymJudge, "separable", {})
    task = get_task_name(tmp_path)
    made = judged(task, target)
    assert isinstance(made, InvalidSubmission), made
    assert MLGymJudge.separable == {task.digest(): True}


def test_a_task_without_a_file_of_its_own_is_judged_in_one_process(tmp_path: Path) -> None:
    get_task_name(tmp_path)
    file = tmp_path / "configs/tasks/game.yaml"
    file.write_text(file.read_text().replace("data/game/target.py, ", "").replace("Play it well.", "Write target.py."))
    task = load_mlgym(tmp_path, "game")
    assert task.submission.files == ("target.py",)
    made = judged(task, "def play(k):\n    return 0.5\n")
    assert isinstance(made, Grade)
    assert (made.score, made.isolation) == (0.5, Isolation.SHARED)


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
    made = judged(get_task_name(tmp_path, SECRETIVE), target, evaluate="print(5417)")
    assert not isinstance(made, Grade) or made.score == 0, made


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
    made = judged(get_task_name(tmp_path), f"{trick}\ndef play(k):\n    return 0.125\n")
    assert isinstance(made, InvalidSubmission) or made == Grade(0.125, {"Score": 0.125}, pytest.approx(0, abs=30)) or (
        "__main__.encode" in trick and isinstance(made, Grade) and made.score == 999  # Which it could return as well.
    ), made  # fmt: skip
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
def test_an_answer_that_is_none_is_an_error_in_the_evaluator_and_nothing_is_asked_again(
    tmp_path: Path, lie: str
) -> None:
    body = """
import time, target
given, errors = [1], []
for function in (target.play, target.other, target.other):
    start = time.monotonic()
    try: function(given)
    except RuntimeError as error: errors.append(str(error))
assert len(errors) == 3 and all("cannot be called any more" in error for error in errors), errors
assert time.monotonic() - start < 0.5
"""
    target = f"{ANSWERS}\ndef play(x): say({lie})\ndef other(x): return 1\n"
    assert score(get_task_name(tmp_path, checked(body)), target) == 1


@pytest.mark.parametrize(
    "said",
    [
        b"", b"null", b"1", b"1=2", b"1 2", b"1 =", b"2 =1", b"-1 =1", b"1 =1 2", b"1 =\xff", b'1 ={"value": null}', b"1 ={}",
        b'1 ={"gone": "passed"}', b'1 ={"tuple": 5}', b'1 ={"tuple": [1], "set": []}', b'1 ={"dict": [[[], 1]]}',
        b'1 ={"array": ["|O8", [1], "AAAAAAAAAAA="]}', b'1 ={"array": ["<f8", [1000000000000], ""]}',
        b'1 ={"element": ["<f8", [1], "AAAAAAAAAAA="]}', b'1 ={"complex": ["x", 1]}', b'1 ={"bytes": "?"}',
        b"1 =" + b"[" * 40_000, b"1 =" + b"9" * 5000, b"1 =1\n2 =1", b"9" * 10_000 + b" =1",
    ],
)  # fmt: skip
def test_whatever_is_answered_the_evaluator_has_one_kind_of_error(said: bytes) -> None:
    (read, to), (back, answer) = os.pipe(), os.pipe()
    try:
        os.write(answer, said + b"\n")
        os.close(answer)
        line = SubmissionPipe(to, back)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="cannot be called any more"):
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
def test_a_submission_that_ended_is_an_error_in_the_evaluator_every_time(tmp_path: Path, way: str) -> None:
    body = "import target\nerrors = 0\nfor f in (target.play, target.other):\n    try: f(0)\n    except RuntimeError: errors += 1\nassert errors == 2"
    assert score(get_task_name(tmp_path, checked(body)), f"def play(k):\n    {way}\ndef other(k): return 1\n") == 1


def test_one_that_never_answers_is_ended_with_the_evaluator_and_one_that_goes_on_ends_with_it(tmp_path: Path) -> None:
    start = time.monotonic()
    made = judged(get_task_name(tmp_path, seconds=1), "def play(k):\n    while True: pass\n")
    assert isinstance(made, InvalidSubmission)
    assert "limit of cpu_time" in made.reason
    stubborn = "import os, sys, threading\nkept = os.dup(int(sys.argv[-2]))\ndef spin():\n    while True: pass\n" \
               "def play(k):\n    threading.Thread(target=spin).start()\n    return 0.5\n"  # fmt: skip
    assert score(get_task_name(tmp_path), stubborn) == 0.5
    assert time.monotonic() - start < 40


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("def play(k:\n", "the evaluator did not come to its end (exit code 1, SyntaxError)"),
        ("raise type('X5417', (Exception,), {})('5417')", "the evaluator did not come to its end (exit code 1, RuntimeError)"),
        ("raise SystemExit('5417')", "the evaluator did not come to its end (exit code 1, RuntimeError)"),
        ("def play(k):\n    raise KeyError('5417')", "the evaluator did not come to its end (exit code 1, KeyError)"),
        ("def other(k):\n    pass", "the evaluator did not come to its end (exit code 1, ImportError)"),
    ],
)  # fmt: skip
def test_of_a_failure_only_the_name_is_told(tmp_path: Path, target: str, told: str) -> None:
    made = judged(get_task_name(tmp_path), target)
    assert isinstance(made, InvalidSubmission)
    assert made.exposed
    assert made.reason.startswith(told)
    assert "5417" not in made.reason


# Values.


def there_and_back(value: Any) -> Any:
    return decode(encode(value))


def alike(one: Any, other: Any) -> bool:
    """The same value, type for type."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return math.isnan(one) and math.isnan(other) if one != one else repr(one) == repr(other)
    if isinstance(one, complex):
        return alike(one.real, other.real) and alike(one.imag, other.imag)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return alike([*one], [*other]) and alike([*one.values()], [*other.values()])
    if isinstance(one, set | frozenset):
        same = one == other or sorted(map(repr, one)) == sorted(map(repr, other))  # NaN equals nothing.
        return same and {type(x) for x in one} == {type(x) for x in other}
    return bool(one == other)


keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.binary()
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda one: st.tuples(one, one) | st.frozensets(one, max_size=3), max_leaves=4,
)  # fmt: skip
elements = st.sampled_from([np.float64(1.5), np.int8(-3), np.bool_(True), np.complex64(2j)])
arrays = st.sampled_from([np.zeros((2, 0)), np.array(1.5), np.arange(6.0).reshape(2, 3).T,
                          np.array([True]), np.array([1 + 2j], np.complex64), np.array([np.nan], ">f2")])  # fmt: skip
plain = st.recursive(
    keys | st.floats() | st.complex_numbers() | st.binary().map(bytearray) | st.integers(-(10**400), 10**400) | elements | arrays,
    lambda one: st.lists(one) | st.tuples(one, one) | st.dictionaries(keys, one) | st.sets(keys), max_leaves=20,
)  # fmt: skip


@given(plain)
def test_any_plain_value_comes_through_as_it_is(value: Any) -> None:
    assert alike(there_and_back(value), value)


def test_subclasses_go_as_their_plain_base_and_the_rest_cannot_be_sent() -> None:
    point = namedtuple("point", "x y")(1, 2)
    level = IntEnum("level", "LOW")
    for value, base in ((point, (1, 2)), (OrderedDict(a=1), {"a": 1}), (Counter("aa"), {"a": 2}), (level.LOW, 1)):  # type: ignore[attr-defined]
        assert alike(there_and_back([value]), [base])
    for value in (object(), print, np.array([None]), np.zeros(2, "i4,i4"), iter([]), json, range(3)):
        with pytest.raises(TypeError):
            encode({"a": [value]})


@settings(max_examples=50)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                    lambda one: st.lists(one) | st.dictionaries(st.text() | st.sampled_from(sorted(BUILDERS)), one)))  # fmt: skip
def test_whatever_comes_is_a_value_or_refused(wire: Any) -> None:
    try:
        value = decode(json.dumps(wire).encode())
    except ValueError:
        return
    assert alike(there_and_back(value), value)


def test_only_exceptions_of_python_are_raised() -> None:
    assert [type(_error([name, "x"])) for name in ("ValueError", "SystemExit", "KeyboardInterrupt", "print", "Own", "UnicodeDecodeError")] == [
        ValueError, *[RuntimeError] * 5,
    ]  # fmt: skip
    assert type(_error({"a": 1})) is type(_error([[], 1])) is RuntimeError
