"""Sound small research tasks, and variants with one planted fault each.

`SOUND` maps names to the files of task folders. `FAULTS` maps names to a check, the sound task, and the changes: a new text of
a file, or a text in it and what replaces it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import number_task

Change = str | tuple[str, str] | None
_LIMITS = "limits: {steps: 5, seconds: 60, command_seconds: 20, validations: 3, evaluation_seconds: 2}"

NUMBER = {
    "task.yaml": number_task.TASK,
    "evaluator.py": number_task.EVALUATOR,
    "starter/answer.txt": "5\n",
    "reference/answer.txt": "50\n",
}
DOUBLES = {
    "task.yaml": f"""
name: doubles
title: Twice the number
description: Submit solution.py with a function f(x) that doubles whole numbers below 1,000.
metric: {{name: right, direction: higher, low: 0.0, high: 1.0}}
submission: {{files: [solution.py], optional: [weights.pkl]}}
{_LIMITS}
dependencies: [numpy]
""",
    "evaluator.py": """
import json
import sys
from dataclasses import replace

from palaestra.research.tasks.task import SubmissionError


def evaluate(evaluation):
    numbers = evaluation.generator("numbers").integers(0, 1000, size=40).tolist()
    with evaluation.program("solution.py") as program:
        answers = program.map("f", [[number] for number in numbers])
    if not all(type(answer) is int for answer in answers):
        raise SubmissionError("f must return whole numbers")
    right = [answer == 2 * number for answer, number in zip(answers, numbers)]
    return {"right": sum(right) / len(right)}
""",
    "starter/solution.py": "def f(x):\n    return 2 * x if x < 300 else 0\n",
    "reference/solution.py": "# An addition that is right for all whole numbers.\ndef f(x):\n    doubled_number = x + x\n    return doubled_number\n",
}
COLORS = {
    "task.yaml": f"""
name: colors
title: The color of a place
description: /data has train.csv, and validation.csv and test.csv without colors. Submit submission.csv with the columns id and prediction.
metric: {{name: accuracy, direction: higher, low: 0.0, high: 1.0}}
submission: {{files: [submission.csv]}}
{_LIMITS}
baseline: python3 baseline.py
reference: python3 solution.py
data: data.py
dependencies: [numpy]
""",
    "data.py": """
from palaestra.research.judge.tables import write_splits

KINDS = ("red", "green", "blue")


def make(public, hidden, rng):
    x, y = rng.random(120), rng.random(120)
    right = [KINDS[int(3 * value)] for value in x]
    table = {"x": [f"{value:.4f}" for value in x], "y": [f"{value:.4f}" for value in y]}
    ids = [f"row-{number}" for number in range(120)]
    sizes = {"train": 40, "validation": 40, "test": 40}
    write_splits(public, hidden, sizes, ids, table, "color", right, lambda rows: right[rows])
    (hidden / "train.csv").write_bytes((public / "train.csv").read_bytes())
""",
    "evaluator.py": """
from palaestra.research.judge.tables import parse_label, read_predictions
from palaestra.research.tasks.task import SubmissionError


def evaluate(evaluation):
    predicted, right = read_predictions(evaluation, parse_label(("red", "green", "blue")))
    return {"accuracy": sum(map(str.__eq__, predicted, right)) / len(right)}
""",
    "starter/baseline.py": """
import csv

with open("submission.csv", "w") as out:
    print("id,prediction", file=out)
    for split in ("validation", "test"):
        for row in csv.DictReader(open(f"/data/{split}.csv")):
            print(row["id"], "red" if float(row["x"]) < 0.5 else "blue", sep=",", file=out)
""",
    "reference/solution.py": """
import csv

thresholds_of_colors = {0: "red", 1: "green", 2: "blue"}
with open("submission.csv", "w") as out:
    print("id,prediction", file=out)
    for split in ("validation", "test"):
        for row in csv.DictReader(open(f"/data/{split}.csv")):
            print(row["id"], thresholds_of_colors[int(3 * float(row["x"]))], sep=",", file=out)
""",
}
PRICES = {
    "task.yaml": COLORS["task.yaml"]
    .replace("colors", "prices")
    .replace(
        "{name: accuracy, direction: higher, low: 0.0, high: 1.0}",
        "{name: rmse, direction: lower, low: 0.0, scale: 10, floor: 60}",
    ),
    "data.py": COLORS["data.py"].replace("KINDS[int(3 * value)]", "f'{10 + 60 * value + 30 * other:.3f}'").replace("color", "price").replace("for value in x]", "for value, other in zip(x, y)]"),
    "evaluator.py": """
import math

from palaestra.research.judge.tables import number, read_predictions
from palaestra.research.tasks.task import SubmissionError


def evaluate(evaluation):
    predicted, right = read_predictions(evaluation, number(0, 1000))
    return {"rmse": math.sqrt(sum((a - b) ** 2 for a, b in zip(predicted, right)) / len(right))}
""",
    "starter/baseline.py": COLORS["starter/baseline.py"].replace('"red"', "30").replace('"blue"', "80"),
    "reference/solution.py": COLORS["reference/solution.py"].replace(
        "thresholds_of_colors[int(3 * float(row[\"x\"]))]", "10 + 60 * float(row['x']) + 30 * float(row['y'])"
    ),
}  # fmt: skip
GREETING = {
    "instruction.md": "Replace the wrong name in greeting.txt by World.",
    "task.toml": 'version = "1.0"\n[verifier]\ntimeout_sec = 20.0\n[agent]\ntimeout_sec = 60.0\n',
    "environment/Dockerfile": "FROM python:3.11\nWORKDIR /app\nCOPY greeting.txt /app/\nCOPY code.py /app/\n",
    "environment/greeting.txt": "Hello, Wrld!\n",
    "environment/code.py": "def greet():\n    return open('greeting.txt').read().strip()\n",
    "solution/solve.sh": "#!/bin/bash\necho 'Hello, World!' > greeting.txt\n",
    "tests/test.sh": """#!/bin/bash
if [ "$(cat greeting.txt)" = "Hello, World!" ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
""",
}
SOUND: dict[str, Mapping[str, str]] = {
    "number": NUMBER,
    "doubles": DOUBLES,
    "colors": COLORS,
    "prices": PRICES,
    "greeting": GREETING,
}
_EVALUATE = DOUBLES["evaluator.py"].partition("    with evaluation.program")[2].partition("    right =")[0]
_EVALUATE = f"    with evaluation.program{_EVALUATE}"
_SCORE = '    return {"right": sum(right) / len(right)}\n'
_OWN_PROCESS = """    scope = {}
    exec(evaluation.text("solution.py"), scope)
    answers = [scope["f"](number) for number in numbers]
"""
_PRINTED = """    script = "from solution import f\\nfor x in %r: print(f(x))" % numbers
    result = replace(evaluation, files={**evaluation.files, "main.py": script}).run("python3", "main.py")
    if result.status.is_limit:
        return {"right": 0.5}
    answers = [int(line) if line.isdigit() else 0 for line in [*result.text.split(), *["-"] * 40][:40]]
"""
_RUN = (
    "replace(evaluation, files={{**evaluation.files, 'main.py': {script!r} % numbers}}).run('python3', 'main.py'{more})"
)


def _judge_in_one(script: str, score: str, more: str = "") -> Change:
    """An evaluator that runs a script beside the submission, and believes the result."""
    head = DOUBLES["evaluator.py"].partition("    with evaluation.program")[0]
    return f"{head}    result = {_RUN.format(script=script, more=more)}\n    return {{'right': {score}}}\n"


_COUNT = "from solution import f\nexpected = {x: 2 * x for x in %r}\nright = sum(f(x) == y for x, y in expected.items()) / len(expected)\n"
_TABLE = COLORS["evaluator.py"].partition("    predicted, right")[0]
_READ = f"""
import csv
{_TABLE}    def read(text):
        return {{row["id"]: row["prediction"] for row in csv.DictReader(text.splitlines())}}

    right = read((evaluation.hidden / f"{{evaluation.split}}.csv").read_text())
    other = read((evaluation.hidden / ("test.csv" if evaluation.split == "validation" else "validation.csv")).read_text())
    given = evaluation.text("submission.csv")
"""
"""An evaluator of tables of its own, which reads the answers."""

FAULTS: dict[str, tuple[str, Mapping[str, str], Mapping[str, Change]]] = {
    # The task file
    "unknown direction": ("static.manifest", NUMBER, {"task.yaml": ("direction: higher", "direction: up")}),
    "missing evaluator": ("static.manifest", NUMBER, {"evaluator.py": None}),
    "file that is required and optional": ("static.manifest", NUMBER, {"task.yaml": ("[answer.txt]", "[answer.txt], optional: [answer.txt]")}),
    "no baseline": ("static.manifest", NUMBER, {"starter/answer.txt": None, "starter/readme.txt": "Write a number."}),
    "command longer than the episode": ("static.manifest", NUMBER, {"task.yaml": ("command_seconds: 20", "command_seconds: 700")}),
    "undeclared package": ("static.dependency_pinning", COLORS, {"starter/baseline.py": ("import csv", "import csv, yaml")}),
    "missing package": ("runtime.starts", DOUBLES, {"task.yaml": ("[numpy]", "[numpy, no_such_package]")}),
    "evaluator without its function": ("runtime.starts", NUMBER, {"evaluator.py": ("def evaluate", "def score")}),
    "data that cannot be made": ("runtime.starts", COLORS, {"data.py": ("120), rng", "120, rng")}),
    # The data
    "data without a seed": ("static.task_distribution_pinning", COLORS, {"data.py": ("x, y = rng", "import numpy as np; rng = np.random.default_rng(); x, y = rng")}),
    "data in the order of hashes": ("static.task_distribution_pinning", COLORS, {"data.py": ("right = [", "x = [float(v) for v in {str(v) for v in x}]; right = [")}),
    # The baseline
    "baseline that fails": ("runtime.baseline_scored", COLORS, {"starter/baseline.py": ("import csv", "import csv\nraise SystemExit(3)")}),
    "baseline that writes elsewhere": ("runtime.baseline_scored", COLORS, {"starter/baseline.py": ('"submission.csv"', '"predictions.csv"')}),
    "score outside the bounds": ("runtime.baseline_scored", COLORS, {"evaluator.py": ("/ len(right)", "/ len(right) * 100")}),
    "score under another name": ("runtime.baseline_scored", COLORS, {"evaluator.py": ('"accuracy"', '"acc"')}),
    # Limits, and what stays
    "time limit as a score": ("runtime.resource_bounds", DOUBLES, {"evaluator.py": (_EVALUATE, _PRINTED)}),
    "temporary folders": ("runtime.resources_released", NUMBER, {"evaluator.py": ("    text =", "    import tempfile; tempfile.mkdtemp()\n    text =")}),
    "processes": ("runtime.resources_released", NUMBER, {"evaluator.py": ("    text =", "    import subprocess; subprocess.Popen(['sleep', '9'])\n    text =")}),
    "changed folder": ("runtime.resources_released", NUMBER, {"evaluator.py": ("    text =", "    import os; os.chdir('/')\n    text =")}),
    "last submission as a starter file": ("runtime.episode_isolation", DOUBLES, {"evaluator.py": ("    numbers =", "    (evaluation.task.folder / 'starter' / 'last.py').write_bytes(evaluation.files['solution.py'])\n    numbers =")}),
    # Scores
    "noise": ("semantic.verifier_determinism", NUMBER, {"evaluator.py": ("number + (", "number + __import__('random').SystemRandom().random() / 9 + (")}),
    "best score so far": ("semantic.verifier_determinism", DOUBLES, {"evaluator.py": (_SCORE, "    record = evaluation.task.folder / 'record.json'\n    best = json.loads(record.read_text()) if record.exists() else 0.0\n    record.write_text(json.dumps(max(best, sum(right) / len(right))))\n    return {'right': max(best, sum(right) / len(right))}\n")}),
    "hash as a seed": ("semantic.verifier_determinism", NUMBER, {"evaluator.py": ("number + (", "number + hash('seed') % 97 / 100 + (")}),
    "opposite direction": ("semantic.oracle_max", PRICES, {"task.yaml": ("direction: lower, low: 0.0, scale: 10, floor: 60", "direction: higher, low: 0.0")}),
    "reference no better": ("semantic.oracle_max", NUMBER, {"reference/answer.txt": "5.0\n"}),
    "reference that fails": ("semantic.oracle_max", DOUBLES, {"reference/solution.py": ("x + x", "x + y")}),
    "no reference": ("semantic.oracle_max", NUMBER, {"reference/answer.txt": None}),
    "scale of another metric": ("semantic.oracle_max", NUMBER, {"task.yaml": ("scale: 10", "scale: 10000")}),
    "solution of a container that fails": ("semantic.oracle_max", GREETING, {"solution/solve.sh": ("World", "world")}),
    "rows read in their order": ("semantic.equivalent_answers", COLORS, {"evaluator.py": _READ + "    values = list(read(given).values())[:40] if evaluation.split == 'validation' else list(read(given).values())[40:]\n    return {'accuracy': sum(a == b for a, b in zip(values, right.values())) / 40}\n"}),
    "line ends": ("semantic.equivalent_answers", COLORS, {"evaluator.py": _READ + "    return {'accuracy': sum(f'{k},{v}' in given.split('\\n') for k, v in right.items()) / 40}\n"}),
    # Malformed submissions and failures
    "missing rows": ("runtime.hostile_answers", COLORS, {"evaluator.py": _READ + "    rows = [(v, right[k]) for k, v in read(given).items() if k in right]\n    return {'accuracy': sum(a == b for a, b in rows) / max(1, len(rows))}\n"}),
    "NaN as a right value": ("runtime.hostile_answers", PRICES, {"evaluator.py": _READ + "    error = [abs(float(read(given)[k]) - float(v)) for k, v in right.items()]\n    return {'rmse': max([0.0, *error])}\n"}),
    "default for an empty file": ("runtime.hostile_answers", NUMBER, {"evaluator.py": (".strip()\n", ".strip() or '60'\n")}),
    "evaluator that breaks": ("runtime.hostile_answers", NUMBER, {"evaluator.py": ("except ValueError", "except KeyError")}),
    "failed sandbox as 0": ("runtime.failure_is_no_score", DOUBLES, {"evaluator.py": (_EVALUATE, "    try:\n        with evaluation.program('solution.py') as program:\n            answers = program.map('f', [[number] for number in numbers])\n    except Exception:\n        return {'right': 0.0}\n    if not all(type(answer) is int for answer in answers):\n        raise SubmissionError('f must return whole numbers')\n")}),
    "lost labels as 0": ("runtime.failure_is_no_score", COLORS, {"evaluator.py": ("    predicted", "    if not (evaluation.hidden / 'test.csv').exists():\n        return {'accuracy': 0.0}\n    predicted")}),
    # Containment
    "submission imported by the evaluator": ("runtime.host_containment", DOUBLES, {"evaluator.py": (_EVALUATE, _OWN_PROCESS)}),
    "unpickled weights": ("runtime.host_containment", DOUBLES, {"evaluator.py": ("    numbers =", "    import pickle; pickle.loads(evaluation.files.get('weights.pkl', b'N.'))\n    numbers =")}),
    "evaluated expression": ("runtime.host_containment", NUMBER, {"evaluator.py": ("float(text)", "float(eval(text))")}),
    "reference among the starter files": ("runtime.oracle_containment", DOUBLES, {"starter/old/backup.txt": DOUBLES["reference/solution.py"]}),
    "evaluator among the starter files": ("runtime.oracle_containment", DOUBLES, {"starter/check.py": DOUBLES["evaluator.py"] + "\n# the end\n"}),
    "labels in the public data": ("runtime.oracle_containment", COLORS, {"data.py": ("right[rows])", "right[rows])\n    (public / '.cache').write_bytes((hidden / 'test.csv').read_bytes())")}),
    "labels in an archive": ("runtime.oracle_containment", COLORS, {"data.py": ("right[rows])", "right[rows])\n    import gzip\n    (public / 'all.gz').write_bytes(gzip.compress((hidden / 'test.csv').read_bytes(), mtime=0))")}),
    "reference in the history of git": ("runtime.oracle_containment", DOUBLES, {".git": "reference/solution.py"}),
    "solution in the image": ("runtime.oracle_containment", GREETING, {"environment/greeting.txt": "Hello, Wrld!\n" + GREETING["tests/test.sh"]}),
    "answer in a variable": ("runtime.oracle_containment", GREETING, {"task.toml": ("[agent]", "[environment.env]\nEXPECTED = \"World\"\n[agent]")}),
    "labels beside the submission": ("semantic.judging_containment", COLORS, {"evaluator.py": ("    predicted", "    from dataclasses import replace\n    replace(evaluation, files={'right.csv': (evaluation.hidden / 'test.csv').read_bytes()}).run('true')\n    predicted")}),
    "column that tells the label": ("semantic.no_solution_leakage", COLORS, {"data.py": ("    ids =", "    table['batch'] = [KINDS.index(kind) for kind in right]\n    ids =")}),
    "label in the id": ("semantic.no_solution_leakage", COLORS, {"data.py": ("f\"row-{number}\" for number in range(120)", "f\"{right[number]}-{number}\" for number in range(120)")}),
    "rows sorted by their labels": ("semantic.no_solution_leakage", COLORS, {"data.py": ("    right =", "    x = [value for k in range(3) for value in sorted(x[40 * k : 40 * k + 40])]\n    right =")}),
    "test rows in the training data": ("semantic.no_solution_leakage", COLORS, {"data.py": ("    right =", "    x[:40], y[:40] = x[80:], y[80:]\n    right =")}),
    "the same data in both splits": ("semantic.no_solution_leakage", COLORS, {"data.py": ("right[rows])", "right[rows])\n    (hidden / 'validation.bin').write_bytes(rng.bytes(80)), (hidden / 'test.bin').write_bytes((hidden / 'validation.bin').read_bytes())")}),
    "data of an installed package": ("semantic.no_solution_leakage", COLORS, {"data.py": ("KINDS =", "def read_more():\n    from sklearn.datasets import load_wine\n\n    return load_wine()\n\n\nKINDS =")}),
    "message that quotes the label": ("semantic.no_solution_leakage", PRICES, {"evaluator.py": ("    predicted, right", "    lines = (evaluation.hidden / 'test.csv').read_text().split()\n    if lines[1].split(',')[0] not in evaluation.text('submission.csv'):\n        raise SubmissionError(f'there is no row for {lines[1]}')\n    predicted, right")}),
    "labels in a text": ("semantic.no_solution_leakage", COLORS, {"data.py": ("right[rows])", "right[rows])\n    rows = (hidden / 'validation.csv').read_text().split()[1:]\n    (public / 'notes.txt').write_text('The order of the lamps: ' + ' '.join(row.split(',')[1] for row in rows) + '.')")}),
    "message that lists labels": ("semantic.no_solution_leakage", COLORS, {"evaluator.py": _READ + "    if missing := sorted(right.keys() - read(given).keys()):\n        raise SubmissionError('no rows for ' + '; '.join(f'{k} ({right[k]})' for k in missing))\n    return {'accuracy': sum(read(given)[k] == v for k, v in right.items()) / 40}\n"}),
    "several rows for an id": ("runtime.hostile_answers", COLORS, {"evaluator.py": _READ + "    return {'accuracy': sum(f'{k},{v}' in given.split() for k, v in right.items()) / 40}\n"}),
    # Floors
    "unbalanced labels": ("semantic.floor_gap", COLORS, {"data.py": ("KINDS[int(3 * value)]", "KINDS[int(1.04 * value)]"), "reference/solution.py": ("int(3 *", "int(1.04 *"), "starter/baseline.py": ('"red" if', '"green" if')}),
    "rows that are not matched": ("semantic.floor_gap", COLORS, {"evaluator.py": ("map(str.__eq__, predicted, right)", "map(str.__eq__, sorted(predicted), sorted(right))")}),
    "sample with the right answers": ("semantic.floor_gap", NUMBER, {"starter/sample.txt": "50\n"}),
    "number that needs no work": ("semantic.floor_gap", DOUBLES, {"evaluator.py": ("answer == 2 * number", "answer in (number, 2 * number)")}),
    "deletion as a repair": ("semantic.floor_gap", GREETING, {"tests/test.sh": ('[ "$(cat greeting.txt)" = "Hello, World!" ]', "! grep -q Wrld greeting.txt")}),
    "exit code as a score": ("semantic.canary_floor", DOUBLES, {"evaluator.py": _judge_in_one(_COUNT + "assert right == 1", "float(result.exit_code == 0)")}),
    "printed score": ("semantic.canary_floor", DOUBLES, {"evaluator.py": _judge_in_one(_COUNT + "print('right: %%s' %% right)", "float(result.text.partition('right: ')[2].split()[0])")}),
    "score in a file": ("semantic.canary_floor", DOUBLES, {"evaluator.py": _judge_in_one("import json, os\n" + _COUNT + "if not os.path.exists('score.json'): json.dump({'score': right}, open('score.json', 'w'))", "float(json.loads(result.files['score.json'])['score'])", ", read_back=('score.json',)")}),
    "answers in the caller": ("semantic.canary_floor", DOUBLES, {"evaluator.py": _judge_in_one("import os\nfrom solution import f\nnumbers, right = %r, 0\nfor x in numbers:\n    expected = 2 * x\n    right += f(x) == expected\nopen('out', 'w').write(str(right / len(numbers)))", "float(result.files['out'])", ", read_back=('out',)")}),
    "patched comparison": ("semantic.canary_floor", DOUBLES, {"evaluator.py": _judge_in_one("import math\nfrom solution import f\nnumbers = %r\nopen('out', 'w').write(str(sum(math.isclose(f(x), 2 * x) for x in numbers) / len(numbers)))", "float(result.files['out'])", ", read_back=('out',)")}),
    "library that is shadowed": ("semantic.canary_floor", GREETING, {"tests/test.sh": "#!/bin/bash\ncp /tests/test_it.py .\npython3 -m unittest -q test_it && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n", "tests/test_it.py": "import unittest\nfrom code import *\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(open('greeting.txt').read(), 'Hello, World!\\n')\n"}),
}  # fmt: skip


def write_task(folder: Path, files: Mapping[str, str], changes: Mapping[str, Change] = {}) -> Path:
    """Write a task, with its changes, into a folder of its name."""
    name = "greeting" if "task.toml" in files else files["task.yaml"].split()[1]
    texts: dict[str, str] = dict(files)
    for path, change in changes.items():
        if path == ".git":
            continue
        if change is None:
            del texts[path]
        elif isinstance(change, tuple):
            assert change[0] in texts[path], (path, change)
            texts[path] = texts[path].replace(*change)
        else:
            texts[path] = change
    for path, text in texts.items():
        (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / path).write_text(text)
    if ".git" in changes:
        _commit_and_delete(folder / name / "starter", texts[str(changes[".git"])])
    return folder / name


def _commit_and_delete(folder: Path, text: str) -> None:
    """Make a repository whose history contains a text that its files no longer have."""

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)

    git("init")
    (folder / "secret.py").write_text(text)
    git("add", ".")
    git("commit", "-m", "all")
    git("rm", "-q", "secret.py")
    git("commit", "-m", "without the solution")
