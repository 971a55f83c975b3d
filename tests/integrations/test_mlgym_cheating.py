"""Attacks on MLGym tasks: reading the answers, forging the score, breaking the host."""

from __future__ import annotations

import json
import math
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from palaestra.core.records import Failure, FailureCause
from palaestra.integrations.mlgym import MLGymTask, load_mlgym
from palaestra.integrations.mlgym import checkout as checkout_files
from palaestra.integrations.mlgym import task as mlgym_task
from palaestra.integrations.mlgym.judge import MAX_SEARCHED, exception_in, overlay_files, scores_in, unseal
from palaestra.research.judge.evaluation import make_judge, sandbox_for
from palaestra.research.judge.inside.evaluate import MARK, MAX_OUTPUT, seal
from palaestra.research.tasks import task as research_task
from palaestra.research.tasks.task import Grade, InvalidSubmission, JudgeResult
from palaestra.research.workspace.workspace import Workspace

SECRETS = ("5417 in the open", "5417 in a folder", "5417 in the data", "5417 in a folder of secrets")
GAME = """
import json
from target import play
hidden = [open(name).read().strip() for name in (
    "answers.txt", "helpers/deep/secret.txt", "data/below/further/labels.txt", "vault/one.txt")]
assert len(hidden) == 4 and all(hidden) and open("data/below/further/rows.txt").read() == "rows", hidden
print(json.dumps({"Score": play(0)}))
for k in range(1, 4):
    last = play(k)
print("a warning", flush=True)
print(json.dumps({"Score": last}, indent=2))
print("the end")
"""
FILES = {
    "configs/tasks/game.yaml": """
id: gameTask
name: A game
description: Play it well.
task_entrypoint: PythonSubmissionTasks
training_timeout: 30
evaluation_paths: [evaluate.py]
dataset_configs: [datasets/rows.yaml]
starter_code: [data/game/evaluate.py, data/game/target.py, data/game/helpers]
baseline_scores: [{Score: 0.5}]
secret_files: [data/game/answers.txt, data/game/helpers/deep/secret.txt, data/game/public/below/further/*.txt.l*,
  data/game/public/below/further/labels.txt, data/game/vault]
""",
    "configs/datasets/rows.yaml": "name: rows\ndata_path: data/game/public\n",
    "data/game/evaluate.py": GAME,
    "data/game/target.py": "def play(k):\n    return 0.25\n",
    "data/game/helpers/notes.txt": "seen",
    "data/game/helpers/deep/notes.txt": "seen",
    "data/game/helpers/deep/secret.txt": SECRETS[1],
    "data/game/answers.txt": SECRETS[0],
    "data/game/vault/one.txt": SECRETS[3],
    "data/game/public/open/rows.txt": "rows",
    "data/game/public/below/rows.txt": "rows",
    "data/game/public/below/further/rows.txt": "rows",
    "data/game/public/below/further/labels.txt": SECRETS[2],
    "data/game/public/below/further/labels.txt.lock": SECRETS[2],
    "configs/tasks/table.yaml": """
id: tableTask
name: A table
description: Fill it.
task_entrypoint: CSVSubmissionTasks
training_timeout: 30
evaluation_paths: [evaluate.py]
starter_code: [data/table/evaluate.py, data/table/helper.py]
baseline_scores: [{loss: 0.5}]
""",
    "data/table/evaluate.py": "import helper, math, sys\nhelper.tell(sum(map(float, open(sys.argv[2]))))\n",
    "data/table/helper.py": "import json, sys\ndef tell(loss):\n    json.dump({'loss': loss}, sys.stdout)\n",
    "configs/tasks/model.yaml": """
id: modelTask
name: A language model
description: Train it.
task_entrypoint: LMSubmissionTasks
training_timeout: 30
evaluation_paths: [evaluate.py]
starter_code: [data/model/evaluate.py]
baseline_scores: [{loss: 4.5}]
""",
    "data/model/evaluate.py": "import json, model\nprint(json.dumps({'loss': 3.5}))\nmodel.load()\nraise SystemExit\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    public = tmp_path / "data/game/public"
    (public / "alias.txt").symlink_to("../answers.txt")
    os.link(public / "below/further/labels.txt", public / "below/copy.txt")
    (public / "below/again").symlink_to("..")
    (public / "nothing").symlink_to("nowhere")
    return tmp_path


@pytest.fixture
def game(checkout: Path) -> MLGymTask:
    return load_mlgym(checkout, "game")


def judge_files(task: MLGymTask, target: str, **more: str) -> JudgeResult:
    """What is judged of a target.py, and of other files by their stems."""
    files = {"target.py": target, **{f"{name}.py": text for name, text in more.items()}}
    return make_judge(task, sandbox_for(task)).judge({name: text.encode() for name, text in files.items()}, "test")


def judge_in_one_process(task: MLGymTask, target: str, **more: str) -> JudgeResult:
    """The same, in one process with the evaluator, as where the evaluator cannot do without."""
    judge = make_judge(task, sandbox_for(task))
    judge.together = True
    files = {"target.py": target, **{f"{name}.py": text for name, text in more.items()}}
    return judge.judge({name: text.encode() for name, text in files.items()}, "test")


def judge_workspace(task: MLGymTask, command: str) -> JudgeResult:
    """What is judged after a command in a fresh workspace."""
    judge = make_judge(task, sandbox_for(task))
    with Workspace(task, judge.sandbox, judge.data) as workspace:
        result = workspace.execute(command)
        assert result.ok, result.text
        files = workspace.submission()
    return files if isinstance(files, InvalidSubmission) else judge.judge(files, "test")


def test_secret_files_are_hidden_from_agents_only(game: MLGymTask) -> None:
    judge = make_judge(game, sandbox_for(game))
    with Workspace(game, judge.sandbox, judge.data) as workspace:
        seen = workspace.execute("find . | sort").text
        assert "5417" not in workspace.execute("cat $(find . -type f -o -type l)").text
        files = workspace.submission()
    for name in ("secret.txt", "answers.txt", "labels.txt", "vault", "copy.txt", "alias.txt", "again", "nothing"):
        assert name not in seen
    for name in (
        "helpers/notes.txt",
        "helpers/deep/notes.txt",
        "data/open/rows.txt",
        "data/below/rows.txt",
        "data/below/further/rows.txt",
    ):
        assert f"./{name}\n" in seen
    assert isinstance(files, dict)
    assert set(files) == {"evaluate.py", "target.py", "helpers/notes.txt", "helpers/deep/notes.txt"}
    assert judge.judge(files, "test") == Grade(0.25, {"Score": 0.25}, pytest.approx(0, abs=30))
    # Folders without a secret are shown as they are, not file by file.
    assert [path.removeprefix("/home/agent/workspace/data/") for path in game.mounts(judge.data, judging=False)] == [
        "below/further/rows.txt",
        "below/rows.txt",
        "open",
    ]


@pytest.mark.parametrize("crowd", [1, 2, 4])
def test_secret_in_a_large_folder_is_covered(game: MLGymTask, monkeypatch: pytest.MonkeyPatch, crowd: int) -> None:
    monkeypatch.setattr(checkout_files, "CROWD", crowd)
    for name in ("a.txt", "b.txt"):
        (game.checkout / "data/game/public/below/further" / name).write_text("rows")
    judge = make_judge(game, sandbox_for(game))
    with Workspace(game, judge.sandbox, judge.data) as workspace:
        seen = workspace.execute("cat data/below/further/[abr]*.txt data/open/rows.txt data/below/rows.txt").text
        assert seen == "rows" * 5
        assert "5417" not in workspace.execute("cat $(find . -type f -o -type l -o -type c)").text
        files = workspace.submission()
    assert isinstance(files, dict)
    assert set(files) == set(game.starter_files())
    assert isinstance(judge.judge(files, "test"), Grade)


@pytest.mark.parametrize(
    ("ending", "reply"),
    [
        ("os._exit(1)", "exit code 1)"),
        ("raise KeyError(secret)", "exit code 1, KeyError)"),
        ("import a_module_that_is_not_there", "exit code 1, ModuleNotFoundError)"),
        ("raise type('X' + secret, (Exception,), {})", "exit code 1)"),
        ("sys.exit(secret)", "exit code 1, SystemExit)"),
        ("os.kill(os.getpid(), 11)", "exit code 139)"),
    ],
)
def test_output_of_judged_code_is_not_shown(game: MLGymTask, ending: str, reply: str) -> None:
    created = judge_in_one_process(
        game,
        "import os, sys\nsecret = open('answers.txt').read()\n"
        f"def play(k):\n    print(secret, file=sys.stderr, flush=True)\n    {ending}\n",
    )
    assert isinstance(created, InvalidSubmission)
    assert created.exposed
    assert "5417" not in created.reason
    assert reply in created.reason


def test_what_is_unusable_before_any_code_ran_does_not_count(checkout: Path, game: MLGymTask) -> None:
    assert make_judge(game, sandbox_for(game)).judge({}, "test") == InvalidSubmission(
        "the submission needs target.py; missing or not regular files: target.py"
    )
    table = load_mlgym(checkout, "table")
    judge = make_judge(table, sandbox_for(table))
    created = judge.judge({"submission.csv": b"1\nno number\n", "helper.py": b"print('{\"loss\": 0}')"}, "test")
    assert isinstance(created, InvalidSubmission)
    assert not created.exposed
    assert not judge.exposed
    assert "no number" in created.reason
    # Nothing else runs there, so all that is printed counts, whoever prints it.
    assert judge.judge({"submission.csv": b"1\n.5\n"}, "test") == Grade(1.5, {"loss": 1.5}, pytest.approx(0, abs=30))


FORGED = '{"Score": 999}'
LOOKALIKE = f"{MARK.decode()}{'0' * 64}:{FORGED.encode().hex()}"
ALL_FILES = """
import os
def everywhere(data):
    for file in range(3, 1024):
        try:
            os.write(file, data)
        except OSError:
            pass
"""


@pytest.mark.parametrize(
    "target",
    [
        f"{ALL_FILES}everywhere(b'{FORGED}\\n')\nos._exit(0)",
        f"{ALL_FILES}everywhere(b'\\n{LOOKALIKE}\\n')\nos._exit(0)",
        f"print('{FORGED}\\n{LOOKALIKE}', flush=True)\nimport os; os._exit(0)",
        # The process that asked for it is gone, and its copy goes on to the end of the evaluator.
        "import os\nif os.fork():\n    os._exit(0)\ndef play(k):\n    return 999",
        # What the evaluator printed on the way is not its result.
        "def play(k):\n    if k:\n        raise SystemExit\n    return 999",
        "import sys\ndef play(k):\n    return 999 if k == 0 else sys.exit(0)",
        # Code says itself which file it is from.
        f"exec(compile('def play(k):\\n print({FORGED!r})\\n raise SystemExit(0)', '/usr/lib/x.py', 'exec'))",
        f"from __main__ import print\ndef play(k):\n    print('{FORGED}')\n    raise SystemExit(0)",
    ],
)
def test_unfinished_evaluator_gives_no_score(game: MLGymTask, target: str) -> None:
    created = judge_in_one_process(game, target)
    assert isinstance(created, InvalidSubmission), created
    assert created.exposed


@pytest.mark.parametrize(
    "target",
    [
        f"{ALL_FILES}everywhere(b'\\n{LOOKALIKE}\\n')",
        "import hashlib, io, os\nhashlib.blake2b = io.StringIO = os.write = os._exit = lambda *a, **k: print(a, k)",
        "import os\nif not os.fork():\n    play = None",
        "import sys\nsys.stdout = sys.__stdout__ = None",
        f"import __main__\n__main__.print('{FORGED}')\nexec('print(text)', vars(__main__), {{'text': '{FORGED}'}})",
        f"import sys, __main__\nsys.setprofile(lambda frame, event, arg: __main__.print('{FORGED}') if event == 'return' else None)",
        "import gc, os, subprocess, sys\nfor file in range(3, 1024):\n    os.path.exists(f'/proc/self/fd/{file}') and "
        "subprocess.Popen([sys.executable, '-c', 'import os\\nfor k in range(1024):\\n try: os.write(k, b\"x\")\\n "
        "except OSError: pass'], close_fds=False).wait()",
    ],
)
def test_tampering_changes_no_score(game: MLGymTask, target: str) -> None:
    created = judge_in_one_process(game, f"{target}\ndef play(k):\n    return 0.125\n")
    assert isinstance(created, Grade), created
    assert created.score == 0.125


def test_who_reads_the_seal_on_its_way_cannot_use_it(game: MLGymTask) -> None:
    thief = f"""
import os, re, threading
def steal(path):
    with open(path, "rb", buffering=0) as pipe, open(path, "wb", buffering=0) as back:
        while data := pipe.read(65536):
            back.write(re.sub(rb":[0-9a-f]{{4,}}\\n", b":{FORGED.encode().hex()}\\n", data))
for file in range(3, 1024):
    path = f"/proc/self/fd/{{file}}"
    if os.path.exists(path) and "pipe" in os.readlink(path):
        for k in range(4):
            threading.Thread(target=steal, args=[path], daemon=True).start()
def play(k):
    return 0.125
"""
    created = judge_in_one_process(game, thief)
    assert isinstance(created, InvalidSubmission) or created == Grade(
        0.125, {"Score": 0.125}, pytest.approx(0, abs=30)
    ), created


def test_the_key_is_in_no_argument_variable_or_file(game: MLGymTask) -> None:
    looked = """
import os
if os.readlink("/proc/self/fd/0") != os.devnull:
    os._exit(3)
found = [open(f"/proc/{one}/{what}", "rb").read() for one in (os.getpid(), os.getppid()) for what in ("cmdline", "environ")]
if any(len(word) == 32 for text in found for part in text.split(b"\\0") for word in (part, part.rpartition(b"=")[2])):
    os._exit(4)
files = {os.path.join(here, name) for top in ("/home", "/tmp", "/opt", "/dev/shm", "/run")
         for here, _, names in os.walk(top) for name in names}
if {os.path.getsize(file) for file in files if "/lib/" not in file and os.access(file, os.R_OK)} & {32, 64}:
    os._exit(5)
def play(k):
    return 0.125
"""
    created = judge_in_one_process(game, looked)
    assert isinstance(created, Grade), created


@pytest.mark.backends
def test_language_model_tampering_changes_no_score(checkout: Path) -> None:
    task = load_mlgym(checkout, "model")
    judge = make_judge(task, sandbox_for(task))
    forged = FORGED.replace("Score", "loss")
    wrong = f"{ALL_FILES}def load():\n    everywhere(b'\\n{forged}\\n')\n    os._exit(0)\n"
    created = judge.judge({"model.py": wrong.encode()}, "test")
    assert isinstance(created, InvalidSubmission), created
    assert created.exposed
    assert "its end (exit code 0)" in created.reason
    right = f"{ALL_FILES}def load():\n    everywhere(b'\\n{forged}\\n')\n"
    assert judge.judge({"model.py": right.encode()}, "test") == Grade(3.5, {"loss": 3.5}, pytest.approx(0, abs=60))


MODEL = "import json, pickle\n{}model = pickle.load(open('weights', 'rb'))\nprint(json.dumps({{'loss': float(model)}}))\nexit()\n"
IN_PYTHON = "from pickle import _loads; pickle.load = lambda file: _loads(file.read())\n"
FORGE = """print('{"loss": 0.0}')"""


@pytest.mark.parametrize(
    ("reader", "called"),
    [
        ("", (print, '{"loss": 0.0}')),
        (IN_PYTHON, (print, '{"loss": 0.0}')),
        ("", (exec, FORGE)),
        ("", (exec, FORGE.replace("print(", "import sys; sys.stdout.write("))),
        ("", (exec, f"__import__('sys').modules['__main__'].{FORGE}")),
        ("", (exec, f"exec({FORGE + '; raise SystemExit(0)'!r}, vars(__import__('sys').modules['__main__']))")),
    ],
)
def test_a_checkpoint_that_prints_while_it_is_read_says_nothing(
    checkout: Path, reader: str, called: tuple[Any, str]
) -> None:
    """Neither by code that it brings, nor by calling the evaluator's own `print`."""

    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return called[0], called[1:]

    (checkout / "data/model/evaluate.py").write_text(MODEL.format(reader))
    file = checkout / "configs/tasks/model.yaml"
    file.write_text(file.read_text().replace("LMSubmissionTasks", "ModelSubmissionTasks"))
    task = load_mlgym(checkout, "model")
    judge = make_judge(task, sandbox_for(task))
    honest = judge.judge({"weights": pickle.dumps(2.5), "config.yaml": b""}, "test")
    assert honest == Grade(2.5, {"loss": 2.5}, pytest.approx(0, abs=60))
    created = judge.judge({"weights": pickle.dumps(Hostile()), "config.yaml": b""}, "test")
    assert isinstance(created, InvalidSubmission), created


def test_only_unchanged_helpers_may_print_scores(checkout: Path) -> None:
    (checkout / "data/model/evaluate.py").write_text("import tell\ntell.loss(3.5)\n")
    (checkout / "data/model/tell.py").write_text("import json\ndef loss(x):\n    print(json.dumps({'loss': x}))\n")
    file = checkout / "configs/tasks/model.yaml"
    text = file.read_text().replace("data/model/evaluate.py", "data/model/evaluate.py, data/model/tell.py")
    file.write_text(text.replace("LMSubmissionTasks", "ModelSubmissionTasks"))
    task = load_mlgym(checkout, "model")
    own = (checkout / "data/model/tell.py").read_bytes()
    judge = make_judge(task, sandbox_for(task))
    assert isinstance(judge.judge({"tell.py": own, "config.yaml": b""}, "test"), Grade)
    changed = own.replace(b"x}", b"0.0}")
    assert isinstance(judge.judge({"tell.py": changed, "config.yaml": b""}, "test"), InvalidSubmission)


def test_secret_does_not_replace_the_submission(checkout: Path) -> None:
    for name in ("train", "test"):
        path = checkout / f"data/game/public/{name}/labels.csv"
        path.parent.mkdir()
        path.write_text(f"5417 {name}")
    (checkout / "data/game/solution").mkdir()
    (checkout / "data/game/solution/target.py").write_text("def play(k):\n    return 99\n")
    file = checkout / "configs/tasks/game.yaml"
    more = "data/game/public/test/labels.csv, data/game/solution/target.py"
    file.write_text(file.read_text().replace("data/game/vault]", f"data/game/vault, {more}]"))
    task = load_mlgym(checkout, "game")
    judge = make_judge(task, sandbox_for(task))
    with Workspace(task, judge.sandbox, judge.data) as workspace:
        assert workspace.execute("cat data/*/labels.csv").text == "5417 train"
        files = workspace.submission()
    assert isinstance(files, dict)
    assert judge.judge(files, "test") == Grade(0.25, {"Score": 0.25}, pytest.approx(0, abs=30))
    file.write_text(file.read_text().replace("data/game/public/test/labels.csv", "labels.csv"))
    shown = load_mlgym(checkout, "game").mounts(judge.data, judging=False)
    assert not [path for path in shown.values() if "labels.csv" in path or path.endswith(("train", "test"))]


@pytest.mark.parametrize("name", ["runpy", "hashlib", "os", "fcntl", "json", "sitecustomize", "evaluate"])
def test_workspace_cannot_shadow_libraries(game: MLGymTask, name: str) -> None:
    created = judge_in_one_process(
        game, "def play(k):\n    return 0.125\n", **{name: f"print('{FORGED}')\nimport sys; sys.exit(0)"}
    )
    assert isinstance(created, Grade), created
    assert created.score == 0.125


@pytest.mark.parametrize(
    "command",
    [
        "rm evaluate.py; mkdir evaluate.py; touch evaluate.py/x",
        "mkdir _palaestra_evaluate.py; touch _palaestra_evaluate.py/x",
        "rm -r helpers; touch helpers",
        "mkdir answers.txt vault; touch answers.txt/x vault/one.txt; mkdir -p helpers/deep/secret.txt; touch helpers/deep/secret.txt/x",
        "touch vault data/alias.txt",
        "rm -r helpers/deep; echo 1 > helpers/deep",
    ],
)
def test_what_lies_in_the_place_of_files_that_judge_is_left_out(game: MLGymTask, command: str) -> None:
    created = judge_workspace(game, command)
    assert isinstance(created, Grade), created
    assert created.score == 0.25


def test_files_of_the_agent_come_before_those_that_do_not_judge() -> None:
    originals = {"evaluate.py": b"0", "lib/a.py": b"1", "lib/b.py": b"2", "notes": b"3", "secrets/x": b"4"}
    files = {
        "evaluate.py": b"-",
        "lib/a.py": b"5",
        "notes/one": b"6",
        "secrets": b"-",
        "data/own": b"7",
        "data/given/x": b"-",
    }
    assert overlay_files(originals, files, {"evaluate.py", "secrets/x"}, {"data/given"}) == {
        "evaluate.py": b"0",
        "lib/a.py": b"5",
        "lib/b.py": b"2",
        "notes/one": b"6",
        "secrets/x": b"4",
        "data/own": b"7",
    }


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("for i in 1 2 3; do truncate -s 400K s$i; done", "more than 1048576 bytes"),
        ("for i in $(seq 30); do touch f$i; done", "more than 20 files"),
        (f"mkdir -p {'/'.join(['d' * 150] * 7)}; touch {'/'.join(['d' * 150] * 7)}/f", "at most 1000 and 200"),
        (f"touch {'ä' * 101}", "202 in one name"),
    ],
)  # fmt: skip
def test_too_large_workspace_is_refused(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, command: str, reason: str
) -> None:
    monkeypatch.setattr(mlgym_task, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(research_task, "MAX_FILES", 20)
    created = judge_workspace(load_mlgym(checkout, "game"), command)
    assert isinstance(created, InvalidSubmission)
    assert reason in created.reason
    assert not created.exposed


def test_as_much_as_can_be_handed_in_is_read_whole(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_mlgym(checkout, "game")
    size = sum(map(len, task.starter_files().values()))
    monkeypatch.setattr(mlgym_task, "MAX_BYTES", size + 5000)
    monkeypatch.setattr(research_task, "MAX_FILES", len(task.starter_files()) + 1)
    created = judge_workspace(load_mlgym(checkout, "game"), "truncate -s 5000 more; touch data/own")
    assert isinstance(created, Grade), created


@pytest.mark.parametrize("value", ["float('nan')", "float('-inf')", "10 ** 400"])
def test_non_finite_score_counts_as_invalid(game: MLGymTask, value: str) -> None:
    created = judge_files(game, f"def play(k):\n    return {value}\n")
    assert isinstance(created, InvalidSubmission)
    assert created.exposed
    assert "not a score" in created.reason


def test_answers_are_not_guessed_by_tables_that_give_no_number(checkout: Path) -> None:
    table = load_mlgym(checkout, "table")
    created = make_judge(table, sandbox_for(table)).judge({"submission.csv": b"inf\n"}, "test")
    assert created == InvalidSubmission("its loss is inf, which is not a score", exposed=True)


def test_missing_metric_is_a_failure_without_details(checkout: Path) -> None:
    path = checkout / "data/game/evaluate.py"
    path.write_text(
        path.read_text().replace('{"Score": last}', "{open('answers.txt').read(): 1, 'b': 2}").replace("Score", "Other")
    )
    game = load_mlgym(checkout, "game")
    assert judge_files(game, "def play(k):\n    return 1\n") == Failure(
        FailureCause.SCORER, "expected 'Score' among the evaluator's scores"
    )


def test_baseline_is_measured_again_after_changes(checkout: Path, game: MLGymTask) -> None:
    before = [game.digest(), load_mlgym(checkout, "game").digest()]
    assert before[0] == before[1]
    for name in ("answers.txt", "vault/one.txt", "helpers/deep/secret.txt"):
        path = checkout / "data/game" / name
        about = path.stat()
        path.write_text(path.read_text().replace("5417", "7145"))
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
        before.append(game.digest())
    path = checkout / "data/game/public/below/further/rows.txt"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1000))
    before.append(game.digest())
    path.rename(path.with_name("lines.txt"))
    before.append(game.digest())
    assert len(set(before)) == len(before) - 1


def test_only_one_sealed_line_counts() -> None:
    key, other = b"k" * 32, b"o" * 32
    line = seal("a\nü", key)
    assert unseal(b"noise" + line + b"noise", key) == "a\nü"
    assert unseal(line + seal("b", other) + line[:-5] + b"\n", key) == "a\nü"
    assert unseal(line, other) is None
    assert unseal(line + seal("b", key), key) is None
    assert unseal(line.replace(b"61", b"62"), key) is None
    assert unseal(b"", key) is None


def test_score_search_takes_linear_time() -> None:
    start = time.process_time()
    for part in ('{"', '{"a":', "{", '{"a":[', '{"a": 1, '):
        assert scores_in(part * 700_000) is None
    assert scores_in('{"a": 1}\n' * 400_000) == {"a": 1.0}
    assert time.process_time() - start < 3.0
    score = json.dumps({"Score": 1.5, "parts": [{"x": 1}], "more": {"Score": 2}}, indent=4)
    for text in (
        score,
        f"{{'x': 1}} warning {{\n{score}\nwarning\n{{",
        "noise\n" * MAX_OUTPUT + score,
        '{"x": tensor(1)}\n' * 5000 + score,
        score.replace("\n", ""),
    ):
        assert scores_in(text) == {"Score": 1.5}
    assert scores_in(f'{{"Score": {"9" * 400}, "other": -{"9" * 400}}}') == {"Score": math.inf, "other": -math.inf}
    assert MAX_SEARCHED >= MAX_OUTPUT


def test_of_an_error_only_the_name_is_told() -> None:
    assert exception_in("Traceback\n  File\nValueError: secret 5417\n") == "ValueError"
    assert exception_in("[rank0]: KeyError: 'x'\nsome.where.ChildFailedError:\n====\n") == "KeyError"
    assert exception_in("KeyError5417: x\nsecret\nprint: x") == ""


def test_a_score_whose_reward_has_no_end_is_none(game: MLGymTask) -> None:
    assert isinstance(judge_files(game, "def play(k):\n    return 1.7e308\n"), InvalidSubmission)


def test_only_what_begins_a_line_is_the_score_of_a_model() -> None:
    assert scores_in('reading {"loss": 0.0}.yaml\n{"loss": 2}\n', "loss", first=True) == {"loss": 2.0}
