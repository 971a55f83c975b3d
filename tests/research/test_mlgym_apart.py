"""One Python file of MLGym's format, judged apart from its evaluator: all that evaluators do works, and nothing can be had."""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from collections import Counter, OrderedDict, defaultdict, namedtuple
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.core.records import Failure, FailureCause
from palaestra.research.inside.changes import apply, can_change
from palaestra.research.inside.stub import Line, Unsendable, raised, remote, sent
from palaestra.research.inside.values import DEPTH, Decoder, Encoder, Garbled, TooLarge
from palaestra.research.mlgym import MLGymTask, load_mlgym
from palaestra.research.mlgym.judge import MLGymJudge
from palaestra.research.places import sandbox_for
from palaestra.research.records import Grade, Outcome, Unusable

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


def task_of(
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


def judged(task: MLGymTask, target: str, **more: str) -> Outcome:
    files = {"target.py": target, **{f"{name}.py": text for name, text in more.items()}}
    judge = task.judge(sandbox_for(task))
    outcome = judge.judge({name: text.encode() for name, text in files.items()}, "test")
    assert judge.exposed
    return outcome


def score(task: MLGymTask, target: str, **more: str) -> float:
    made = judged(task, target, **more)
    assert isinstance(made, Grade), made
    return made.score


def checked(body: str) -> str:
    """An evaluator that gives a score of 1 if nothing in it fails."""
    return f"import json\n{body}\nprint(json.dumps({{'Score': 1}}))\n"


# What evaluators do.


def test_the_module_is_found_however_an_evaluator_looks_for_it(tmp_path: Path) -> None:
    body = """
import importlib, multiprocessing, runpy, subprocess, sys, target
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from target import *
assert target.play(2) == play(2) == importlib.import_module("target").play(2) == 3
spec = spec_from_file_location("another", "target.py")
module = module_from_spec(spec)
spec.loader.exec_module(module)
assert module.play(2) == runpy.run_path("target.py")["play"](2) == 3
assert [play.count(), play.count(), module.play.count()] == [1, 2, 1]  # Each has what it keeps for itself.
del play
exec(open("target.py").read())
scope = {}
exec(open("/home/agent/workspace/target.py").read(), scope)
assert play(2) == scope["play"](2) == 3
command = [sys.executable, "-c", "import target; print(target.play(2))"]
assert subprocess.check_output(command) == b"3\\n"
with multiprocessing.Pool(2) as pool, ThreadPoolExecutor(4) as threads:
    assert pool.map(play, range(20)) == list(threads.map(play, range(20))) == list(range(1, 21))
"""
    target = "import mine\nfrom helper import double\ndef play(k):\n    return mine.half(double(k)) + 1\n" \
             "def count():\n    play.calls = getattr(play, 'calls', 0) + 1\n    return play.calls\nplay.count = count\n"  # fmt: skip
    task = task_of(tmp_path, checked(body))
    assert score(task, target, mine="def half(x):\n    return x // 2\n") == 1


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
    made = judged(task_of(tmp_path, text), "def play(k):\n    return 0.125\n")
    assert isinstance(made, Grade if good else Unusable), made


def test_scores_are_heard_from_subprocesses_and_at_the_exit(tmp_path: Path) -> None:
    text = "import atexit, subprocess, sys, target\n{}\nprint('x' * 300000)\nscore = target.play(1)\n"
    at_exit = text.format("atexit.register(lambda: print('\\n{\"Score\":', score, '}'))")
    assert score(task_of(tmp_path, at_exit), "def play(k):\n    return 0.5\n") == 0.5
    other = text.format("") + "print(flush=True)\nsubprocess.run(['echo', '{\"Score\": %s}' % score])\n"
    assert score(task_of(tmp_path, other), "def play(k):\n    return 0.75\n") == 0.75


OBJECTS = """
LIMIT, TABLE, _hidden = 3, {"a": (1, 2)}, 4
LARGE = list(range(100_000))
class Inner:
    depth = 7
class Agent:
    def __init__(self, name, *, level=1):
        self.name, self.level, self.inner, self.items = name, level, Inner(), [1, 2]
    def act(self, observation): return max(observation) + self.level
    def __len__(self): return 4
    def __bool__(self): return False
    def __getitem__(self, k):
        if k > 2: raise IndexError(k)
        return 10 * k
    def __setitem__(self, k, value): self.name = value
    def __eq__(self, other): return True
    def __hash__(self): return 1
def count():
    k = 0
    while True:
        yield k
        k += 1
def few(): yield from "ab"
def adder(x): return lambda y: x + y
def apply(f, x): return f(x)
def same(agent, other): return agent is other
state = 0
def bump():
    global state
    state += 1
    return state
"""


def test_classes_generators_and_functions_are_used_where_they_are(tmp_path: Path) -> None:
    body = """
import copy, target
from target import Agent, adder, apply, bump, count, few, same, _hidden
assert (target.LIMIT, target.TABLE, _hidden, target.LARGE[99_999], len(target.LARGE)) == (3, {"a": (1, 2)}, 4, 99_999, 100_000)
agent = Agent("bob", level=2)
assert (agent.name, agent.act([1, 5]), agent.inner.depth, agent.items) == ("bob", 7, 7, [1, 2])
assert (len(agent), agent[2], list(agent), bool(agent)) == (4, 20, [0, 10, 20], False)
agent.name = "joe"; assert agent.name == "joe"
agent[0] = "sue"; assert agent.name == "sue"
del agent.level; assert not hasattr(agent, "level") and hasattr(agent, "name")
assert isinstance(agent, Agent) and not isinstance(3, Agent) and callable(Agent) and not callable(agent)
twin = copy.deepcopy(agent); twin.name = "ann"; assert agent.name == "sue"
assert agent == agent and agent != twin and agent != 5 and same(agent, agent) and not same(agent, twin)
numbers = count(); assert [next(numbers), next(numbers), next(numbers)] == [0, 1, 2]
assert [x for x, _ in zip(count(), range(4))] == [0, 1, 2, 3] and list(few()) == ["a", "b"]
assert adder(1)(2) == 3 and apply(adder(5), 1) == 6 and adder.__name__ == "adder"
assert [bump(), bump()] == [1, 2]
try: target.nothing
except AttributeError: pass
else: raise SystemExit(5)
try: from target import nothing
except ImportError: pass
else: raise SystemExit(6)
"""
    assert score(task_of(tmp_path, checked(body)), OBJECTS) == 1


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
    assert score(task_of(tmp_path, checked(body)), target) == 1


def test_what_a_submission_does_to_its_arguments_is_done_to_those_of_the_evaluator(tmp_path: Path) -> None:
    body = """
import numpy, target
from collections import Counter, namedtuple
Point = namedtuple("Point", "x y")
inner, point, array = [1], Point(1, 2), numpy.zeros((2, 3))
board, names, seen, pair = [inner, point, 3, 1], {"a": (other := [1]), "b": 1}, {1, 2}, ([0], 5)
counts, view, untouched = Counter("aab"), array[1], [float("nan"), point]
target.change(board, names, seen, pair, counts, view, untouched, word=(word := bytearray(b"abc")))
assert board == [[1, "new"], point, True, 1, "end"] and board[0] is inner and board[1] is point and board[2] is True, board
assert names == {"a": [1, "new", 2], "c": (1,)} and names["a"] is other, names
assert (seen, pair, counts["b"], type(counts), bytes(word)) == ({2, 3}, ([0, 1], 5), 7, Counter, b"ac")
assert array.tolist() == [[0, 0, 0], [4, 4, 4]] and untouched[1] is point
"""
    target = """
def change(board, names, seen, pair, counts, view, untouched, word):
    board[0].append("new"); board[2] = True; board.append("end")
    names["a"] = [1, "new", 2]; del names["b"]; names["c"] = (1,)
    seen.add(3); seen.discard(1); pair[0].append(1); counts["b"] = 7; view[:] = 4; del word[1]
"""
    assert score(task_of(tmp_path, checked(body)), target) == 1


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
        score(task_of(tmp_path, checked(body)), "import time\ndef slow(): time.sleep(0.3)\ndef play(k): return k\n")
        == 1
    )


def test_a_submission_draws_the_same_every_time(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    target = "import random, numpy\nfirst = random.random() + numpy.random.rand()\n" \
             "def play(k):\n    return first + random.random() + numpy.random.rand() + hash('text') % 1000\n"  # fmt: skip
    assert score(task, target) == score(task, target)


def test_arguments_may_have_any_name(tmp_path: Path) -> None:
    task = task_of(tmp_path, checked("from target import f\nassert f(self=1, way=2, one=3, given=4) == 10"))
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
    assert score(task_of(tmp_path, text), target) == 2


# Where it cannot be done apart.

CALLBACK = "import json\nfrom target import play\nprint(json.dumps({'Score': play(lambda x: x / 2)}))\n"


def test_an_evaluator_that_passes_what_cannot_be_sent_is_judged_in_one_process_and_that_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MLGymJudge, "inseparable", set())
    task = task_of(tmp_path, CALLBACK, own="def play(f):\n    return f(1)\n")
    assert score(task, "def play(f):\n    return f(3)\n") == 1.5
    assert MLGymJudge.inseparable == {task.digest()}
    monkeypatch.setattr("palaestra.research.mlgym.judge.run_apart", None)  # It is not tried again.
    assert score(task, "def play(f):\n    return f(5)\n") == 2.5


def test_target_py_as_a_program_is_judged_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MLGymJudge, "inseparable", set())
    text = "import json, subprocess, sys\nout = subprocess.run([sys.executable, 'target.py'], capture_output=True, text=True)\n" \
           "print(json.dumps({'Score': float(out.stdout)}))\n"  # fmt: skip
    assert score(task_of(tmp_path, text, own="print(1)"), "if __name__ == '__main__':\n    print(0.5)\n") == 0.5
    assert len(MLGymJudge.inseparable) == 1


@pytest.mark.parametrize(
    "target",
    [
        "import numpy\ndef play(k):\n    return [None, print] if k == 0 else 999",
        "deep = []\nfor _ in range(95): deep = [deep]\ndef play(k):\n    return deep if k == 0 else 999",
    ],
)
def test_no_submission_brings_itself_into_the_process_of_the_evaluator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """An array of what was returned is one of objects, which cannot be sent; with the task's own file it is one of numbers."""
    monkeypatch.setattr(MLGymJudge, "inseparable", set())
    body = """
import json, numpy, target
first = target.play(0)
for _ in range(10): first = [first]
try: target.play(first)
except RuntimeError: pass
value = target.play(numpy.array([target.play(0), None], dtype=object) if not isinstance(first[0][0], list) or
                    not isinstance(target.play(0), (int, float)) else 1)
print(json.dumps({"Score": value}))
"""
    task = task_of(tmp_path, body)
    made = judged(task, target)
    assert isinstance(made, Unusable), made
    assert not MLGymJudge.inseparable


def test_without_a_file_of_its_own_a_task_cannot_show_what_it_passes(tmp_path: Path) -> None:
    task = task_of(tmp_path, CALLBACK)
    file = tmp_path / "configs/tasks/game.yaml"
    file.write_text(file.read_text().replace("data/game/target.py, ", ""))
    task = load_mlgym(tmp_path, "game")
    made = judged(task, "def play(f):\n    return 999\n")
    assert isinstance(made, Failure)
    assert made.cause is FailureCause.SCORER
    assert "builtins.function" in made.message


@pytest.mark.parametrize(
    ("metric", "together"),
    [("Time", True), ("runtime_seconds", True), ("solveTime", True), ("mean latency", True), ("Score", False),
     ("sentiment", False), ("estimate", False), ("reward", False)],
)  # fmt: skip
def test_where_time_counts_no_messages_are_measured(tmp_path: Path, metric: str, together: bool) -> None:
    task = task_of(tmp_path, metric=metric)
    assert task.judge(sandbox_for(task)).together is together


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
    made = judged(task_of(tmp_path, SECRETIVE), target, evaluate="print(5417)")
    assert not isinstance(made, Grade) or made.score == 0, made


def test_what_the_agent_saw_is_where_its_submission_runs(tmp_path: Path) -> None:
    target = "import helper\ndef play(k):\n    return 5417 if open('data/rows.txt').read() == 'public rows' else 0"
    assert score(task_of(tmp_path, SECRETIVE), target) == 1


EVERYWHERE = "import os\nfor file in range(1024):\n    try: os.write(file, DATA)\n    except OSError: pass\n"


@pytest.mark.parametrize(
    "trick",
    [
        f"import json\njson.dumps = lambda *a, **k: '{FORGED}'",
        f"exec(\"print = json = None\\ndef dumps(*a): return '{FORGED}'\", vars(__import__('__main__')))",
        "import __main__\n__main__.Server.encode = lambda self, value: 999",
        f"import os\nif not os.fork():\n    print('{FORGED}')\n    os._exit(0)",
        "import os, signal\nfor process in (1, os.getppid()):\n    try: os.kill(process, signal.SIGKILL)\n    except OSError: pass",
        "import threading\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)], daemon=False).start()",
        f"import atexit\natexit.register(print, '{FORGED}')\nimport os\nos._exit(0)",
        EVERYWHERE.replace("DATA", f"b'{FORGED}\\n'"),
        EVERYWHERE.replace("DATA", "b'.' + b'\"{}\"\\n'") + "os._exit(0)",
        EVERYWHERE.replace("DATA", "b'!' + b'\"x\"\\n'"),
    ],
)
def test_no_trick_gives_another_score(tmp_path: Path, trick: str) -> None:
    start = time.monotonic()
    made = judged(task_of(tmp_path), f"{trick}\ndef play(k):\n    return 0.125\n")
    assert isinstance(made, Unusable) or made == Grade(0.125, {"Score": 0.125}, pytest.approx(0, abs=30)) or (
        "Server.encode" in trick and isinstance(made, Grade) and made.score == 999  # Which it could return as well.
    ), made  # fmt: skip
    assert time.monotonic() - start < 15


ANSWERS = """
import os, sys
def say(text):
    data = text.encode() if isinstance(text, str) else text
    places = {file: f"/proc/self/fd/{file}" for file in range(64)}
    line = max(file for file, path in places.items() if os.path.exists(path) and "pipe" in os.readlink(path))
    while data:
        data = data[os.write(line, data):]
"""


@pytest.mark.parametrize("lie", ["'garbage\\n'", '\'{"number": 1, "value": 1}\\n\'', "'x' * (9 << 20)"])
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
assert len(errors) == 3 and all("can be asked no more" in error for error in errors), errors
assert type(given) is list and time.monotonic() - start < 0.1
"""
    target = f"{ANSWERS}\ndef play(x): say({lie})\ndef other(x): return 1\n"
    assert score(task_of(tmp_path, checked(body)), target) == 1


@pytest.mark.parametrize(
    "said",
    [
        "",
        "null",
        "[1, 2]",
        "\xff",
        '{"number": 1}',
        '{"number": 2, "value": 1}',
        '{"number": "1", "value": 1}',
        '{"ended": "5417"}',
        '{"number": 1, "value": ["pickle", "x"]}',
        '{"number": 1, "value": {}}',
        '{"number": 1, "value": [[], 1]}',
        '{"number": 1, "value": ["h", "x", true]}',
        '{"number": 1, "value": ' + '["l", ' * 90000 + "]" * 90001 + "}",
        '{"number": 1, "value": ' + '["l", ' * 300 + "1" + "]" * 300 + "}",
        '{"number": 1, "value": ' + "9" * 5000 + "}",
        '{"number": 1, "value": ["n", "|O8", [1], "AAAAAAAAAAA="]}',
        '{"number": 1, "value": ["n", "<f8", [1000000000000], ""]}',
        '{"number": 1, "value": ["d", ["l"], 1]}',
        '{"number": 1, "value": ["d", 1]}',
        '{"number": 1, "value": 1, "changed": {"0": 5}}',
        '{"number": 1, "value": 1, "changed": {"0": ["t", 1]}}',
        '{"number": 1, "value": 1, "changed": {"0": ["l", ["d", ["l"], 1]]}}',
        '{"number": 1, "value": 1, "changed": {"1": ["t", ["l"], 8]}}',
        '{"number": 1, "value": 1, "changed": {"2": 8}}',
        '{"number": 1, "value": 1, "changed": {"3": ["l", 1]}}',
        '{"number": 1, "value": 1, "changed": {"x": ["l", 1]}}',
        '{"number": 1, "value": 1, "changed": 7}',
    ],
)
def test_whatever_is_answered_arguments_keep_their_types_and_the_evaluator_has_one_kind_of_error(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    line, other = Line(), socket.socketpair()
    monkeypatch.setattr("palaestra.research.inside.stub.LINE", line)
    line._line = other[0]
    with other[0], other[1]:
        threading.Thread(target=other[1].sendall, args=[said.encode("latin-1") + b"\n"]).start()
        one, given = remote(5, True), ([1], ([2], 7), 7)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can be asked no more"):
                line.ask("call", one, *given)
    assert type(given[0]) is list
    assert given[1:] == (([2], 7), 7) or given[1:] == (([], 7), 7)


@pytest.mark.parametrize(
    "way",
    [
        "import os; os._exit(0)",
        "import os; os.kill(os.getpid(), 9)",
        "return 'x' * (9 << 20)",
        "deep = ()\n    for _ in range(100_000): deep = (deep,)\n    return deep",
    ],
)
def test_a_submission_that_ended_is_an_error_in_the_evaluator_every_time(tmp_path: Path, way: str) -> None:
    body = "import target\nerrors = 0\nfor f in (target.play, target.other):\n    try: f(0)\n    except RuntimeError: errors += 1\nassert errors == 2"
    assert score(task_of(tmp_path, checked(body)), f"def play(k):\n    {way}\ndef other(k): return 1\n") == 1


def test_one_that_never_answers_is_ended_with_the_evaluator_and_one_that_goes_on_ends_with_it(tmp_path: Path) -> None:
    start = time.monotonic()
    made = judged(task_of(tmp_path, seconds=1), "def play(k):\n    while True: pass\n")
    assert isinstance(made, Unusable)
    assert "limit of wall_time" in made.reason
    stubborn = "import os, threading\nkept = os.open('/proc/self/fd/3', os.O_WRONLY)\ndef spin():\n    while True: pass\n" \
               "def play(k):\n    threading.Thread(target=spin).start()\n    return 0.5\n"  # fmt: skip
    assert score(task_of(tmp_path), stubborn) == 0.5
    assert time.monotonic() - start < 8


def test_thousands_of_objects_and_a_generator_without_an_end_are_no_burden(tmp_path: Path) -> None:
    body = """
import target
kept = target.many(3000)
assert kept[2999].number == 2999 and kept[2999] is target.last()
del kept
assert target.alive() > 2000
for k in range(3): target.alive()
assert target.alive() < 5, target.alive()
endless = target.endless()
assert sum(next(endless) for _ in range(50)) == 50
"""
    target = """
import gc, weakref
class One:
    def __init__(self, number): self.number = number
all_ = weakref.WeakSet()
def many(n):
    global newest
    made = [One(k) for k in range(n)]
    all_.update(made)
    newest = made[-1]
    return made
def last(): return newest
def alive():
    gc.collect()
    return len(all_)
def endless():
    while True: yield 1
"""
    task = task_of(tmp_path, checked(body.replace("assert target.alive() > 2000\n", "")))
    assert score(task, target) == 1


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("def play(k:\n", "target.py cannot be imported (SyntaxError); the evaluator did not come to its end (exit code 1, SyntaxError)"),
        ("raise type('X5417', (Exception,), {})('5417')", "target.py cannot be imported (RuntimeError); the evaluator"),
        ("raise SystemExit('5417')", "target.py cannot be imported (SystemExit); the evaluator"),
        ("def play(k):\n    raise KeyError('5417')", "the evaluator did not come to its end (exit code 1, KeyError)"),
        ("def other(k):\n    pass", "the evaluator did not come to its end (exit code 1, ImportError)"),
    ],
)  # fmt: skip
def test_of_a_failure_only_the_name_is_told(tmp_path: Path, target: str, told: str) -> None:
    made = judged(task_of(tmp_path), target)
    assert isinstance(made, Unusable)
    assert made.exposed
    assert made.reason.startswith(told)
    assert "5417" not in made.reason


# Values.


def there_and_back(value: Any) -> Any:
    wire = json.loads(json.dumps(Encoder(sent).encode(value)))
    return Decoder(lambda number, called: (number, called)).decode(wire)


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
    | st.text(st.characters(exclude_categories=())),
    lambda one: st.tuples(one, one) | st.frozensets(one, max_size=3), max_leaves=4,
)  # fmt: skip
elements = st.sampled_from([np.float64(1.5), np.int8(-3), np.bool_(True), np.str_("ab"), np.datetime64("2020-01-01")])
arrays = st.sampled_from([np.zeros((2, 0)), np.array(1.5), np.arange(6.0).reshape(2, 3).T, np.array(["a", "bcd"]),
                          np.array([True]), np.array([1 + 2j], np.complex64), np.array([np.nan], ">f2")])  # fmt: skip
plain = st.recursive(
    keys | st.floats() | st.complex_numbers() | st.binary().map(bytearray) | st.integers(-(10**400), 10**400) | elements | arrays
    | st.builds(range, st.integers(), st.integers(), st.integers(1)),
    lambda one: st.lists(one) | st.tuples(one, one) | st.dictionaries(keys, one) | st.sets(keys), max_leaves=20,
)  # fmt: skip


@given(plain)
def test_any_plain_value_comes_through_as_it_is(value: Any) -> None:
    assert alike(there_and_back(value), value)


@settings(max_examples=40)
@given(st.lists(plain, max_size=3), st.lists(plain, max_size=3))
def test_a_list_becomes_whatever_list_came_back(old: list[Any], new: list[Any]) -> None:
    encode, decoder = Encoder(sent).encode, Decoder(lambda number, called: number)
    before, after = (json.loads(json.dumps(encode(one))) for one in (old, new))
    assert can_change(before)
    apply(old, before, after, decoder)
    assert alike(old, new) or json.dumps(Encoder(sent).encode(old), sort_keys=True) == json.dumps(after, sort_keys=True) or any(
        isinstance(one, dict | set) for one in _all(new)  # The order in them is not brought back.
    )  # fmt: skip


def _all(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [value, *[part for one in inner for part in _all(one)]]


def test_subclasses_go_as_their_plain_base_and_the_rest_cannot_be_sent() -> None:
    point = namedtuple("point", "x y")(1, 2)
    level = IntEnum("level", "LOW")
    for value, base in ((point, (1, 2)), (OrderedDict(a=1), {"a": 1}), (defaultdict(list, a=[1]), {"a": [1]}),
                        (Counter("aa"), {"a": 2}), (level.LOW, 1)):  # type: ignore[attr-defined]  # fmt: skip
        assert alike(there_and_back([value]), [base])
    for value in (object(), print, Enum("color", "RED"), np.array([None]), np.zeros(2, "i4,i4"), iter([]), json):
        with pytest.raises(Unsendable):
            there_and_back({"a": [value]})


def test_tensors_come_through() -> None:
    torch = pytest.importorskip("torch")
    for value in (
        torch.arange(6.0).reshape(2, 3).T,
        torch.tensor(True),
        torch.zeros(2, 0),
        torch.ones(3, dtype=torch.bfloat16),
    ):
        found = there_and_back(value)
        assert found.dtype == value.dtype
        assert torch.equal(found, value)


def test_what_is_too_deep_or_contains_itself_is_an_error_of_its_own() -> None:
    deep: list[Any] = []
    for _ in range(DEPTH - 1):
        deep = [deep]
    assert there_and_back(deep) == deep
    for value in ([deep], [[deep]]):
        with pytest.raises(TooLarge):
            there_and_back(value)
    deep.append(deep)
    with pytest.raises(TooLarge):
        there_and_back(deep)
    wire: list[Any] = ["l"]
    for _ in range(500):
        wire = ["l", wire]
    with pytest.raises(Garbled):
        Decoder(lambda number, called: number).decode(wire)


@settings(max_examples=50)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from("ltdsfrxhnebaTicu"),
                    lambda one: st.lists(one) | st.dictionaries(st.text(), one)))  # fmt: skip
def test_whatever_comes_is_a_value_or_garbled(wire: Any) -> None:
    try:
        value = Decoder(lambda number, called: (number, called)).decode(wire)
    except Garbled:
        return
    assert alike(there_and_back(value), value)


def test_only_exceptions_of_python_are_raised() -> None:
    assert [type(raised([name, "x"])) for name in ("ValueError", "SystemExit", "KeyboardInterrupt", "print", "Own", "UnicodeDecodeError")] == [
        ValueError, *[RuntimeError] * 5,
    ]  # fmt: skip
    assert type(raised({"a": 1})) is type(raised([[], 1])) is RuntimeError
