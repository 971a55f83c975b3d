"""Files that a user may bring and that cannot be used: data, code and run folders."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

from palaestra.runs.run import Run

CODE = """
import gymnasium

class NoTask:
    pass

class NoSkills:
    name = "none"
    def skills(self): return {}
    def problems(self, split, per_skill, seed, skills=()): return []
    def score(self, problem, completion): return 0.0

class ShortProblems(NoSkills):
    def skills(self): return {"one": ()}
    def problems(self, split): return []

class ShortScore(NoSkills):
    def skills(self): return {"one": ()}
    def score(self, completion): return 0.0

class BrokenTask:
    def __init__(self): raise ValueError("no data today")

class NoTeacher:
    def __init__(self, task, skills=()): pass

class ShortTeacher(NoTeacher):
    def write(self, state): return None

class TaskOnly:
    def __init__(self): pass
    def write(self, state, size, generator): return None

class NoEnv:
    pass

class NoSpaces(gymnasium.Env):
    def reset(self, *, seed=None, options=None): return 0, {}
    def step(self, action): return 0, 0.0, True, False, {}

class ShortReset(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self): return self.observation_space.sample(), {}
    def step(self, action): return self.observation_space.sample(), 0.0, True, False, {}

class ShortStep(ShortReset):
    def reset(self, *, seed=None, options=None): return self.observation_space.sample(), {}
    def step(self): return self.observation_space.sample(), 0.0, True, False, {}

class BrokenEnv(gymnasium.Env):
    def __init__(self): raise RuntimeError("no simulator")

def make_nothing(): return None

def good_reward(completions, **columns): return [0.0] * len(completions)
def no_arguments(): return [0.0]
def other_arguments(sentences, labels): return [0.0]
def score_nothing(): return 1.0
def score_three(text, problem, judge): return 1.0
NUMBER = 3
"""

GOOD = {"question": "What is 1 + 2?", "answer": "3"}


def write_files(folder: Path) -> None:
    """Write every file and folder that the rows of the tests name."""
    (folder / "mine.py").write_text(CODE)
    (folder / "broken.py").write_text("def broken(:\n")
    (folder / "exits.py").write_text("import sys\nsys.exit(0)\n")
    (folder / "a_file").write_text("")
    _write_data(folder)
    _write_runs(folder)
    _write_settings(folder)
    _write_models(folder)


def _write_models(folder: Path) -> None:
    for name in ("large", "adapter"):
        (folder / name).mkdir()
    # 33 M parameters; the weights are missing.
    large = {"model_type": "gpt2", "vocab_size": 32000, "n_embd": 512, "n_layer": 5, "n_head": 8}
    (folder / "large" / "config.json").write_text(json.dumps(large))
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "nano"}))


def _write_data(folder: Path) -> None:
    rows = [{"question": f"What is {n} + {n + 1}?", "answer": str(2 * n + 1), "skill": "sums"} for n in range(40)]
    _write_rows(folder / "good.jsonl", *rows)
    _write_rows(folder / "no_answers.jsonl", *({"question": row["question"]} for row in rows))
    _write_rows(folder / "no_question.jsonl", {"a": 1, "b": 2})
    _write_rows(folder / "one_without.jsonl", *rows[:3], {"question": "What?"}, *rows[4:])
    _write_rows(folder / "empty_question.jsonl", *rows[:3], {"question": " ", "answer": "1"})
    _write_rows(folder / "bad_chat.jsonl", {"messages": "Hello", "answer": "1"})
    _write_rows(folder / "bad_role.jsonl", {"messages": [{"role": "nobody", "content": "Hi"}], "answer": "1"})
    _write_rows(folder / "only_assistant.jsonl", {"messages": [{"role": "assistant", "content": "Hi"}]})
    _write_rows(folder / "bad_choice.jsonl", {"question": "Which?", "choices": ["a", "b"], "answer": "c"})
    _write_rows(folder / "one_choice.jsonl", {"question": "Which?", "choices": ["a"], "answer": "a"})
    _write_rows(folder / "bad_split.jsonl", GOOD | {"split": "dew"})
    _write_rows(folder / "bad_tests.jsonl", {"question": "Write f.", "tests": 7})
    _write_rows(folder / "bad_regex.jsonl", GOOD | {"answer": "(("})
    _write_rows(folder / "one_split.jsonl", *(row | {"split": "train"} for row in rows))
    _write_rows(folder / "no_image.jsonl", *({**row, "image": "nowhere.png", "split": "test"} for row in rows))
    _write_rows(folder / "words.jsonl", *({"question": row["question"], "answer": "blue"} for row in rows))
    (folder / "empty.jsonl").write_text("")
    (folder / "blank.csv").write_text("")
    (folder / "header.csv").write_text("question,answer\n")
    (folder / "ragged.csv").write_text("question,answer\nWhat?,1\nWhat,is,it?,2\n")
    (folder / "quotes.csv").write_text('question,answer\n"What?" x,1\n"open,2\n')
    (folder / "latin.csv").write_bytes("question,answer\nWas heißt süß?,sweet\n".encode("latin-1"))
    (folder / "latin.jsonl").write_bytes('{"question": "süß?", "answer": "1"}\n'.encode("latin-1"))
    (folder / "no_json.jsonl").write_text(json.dumps(GOOD) + "\n{'question': 'single quotes'}\n")
    (folder / "numbers.jsonl").write_text("1\n2\n")
    (folder / "no_list.json").write_text('"a text"')
    (folder / "no_json.json").write_text("[{")
    (folder / "no_table.parquet").write_bytes(b"PAR1 but nothing else")
    (folder / "sheet.xlsx").write_bytes(b"PK\x03\x04")
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(json.dumps(GOOD).encode() * 50)[:40])
    (folder / "no_gzip.jsonl.gz").write_text(json.dumps(GOOD))
    (folder / "nothing_here").mkdir()
    (folder / "two_files").mkdir()
    for name in ("a", "b"):
        _write_rows(folder / "two_files" / f"{name}.jsonl", GOOD)


def _write_runs(folder: Path) -> None:
    whole = {"format": 1, "recipe": "evaluate", "settings": {"model": "nano"}}
    changes: Mapping[str, object] = {
        "run_without_store": whole,
        "run_of_later_version": whole | {"format": 99},
        "run_without_recipe": {"format": 1, "settings": {}},
        "run_with_list": [1, 2],
    }
    for name, content in changes.items():
        (folder / name).mkdir()
        (folder / name / "settings.json").write_text(json.dumps(content))
    with Run.create(folder / "run_of_unknown_recipe", "juggle", {}):
        pass
    (folder / "unwritable").mkdir()
    for name, text in (("run_cut", '{"format": 1, "recipe"'), ("run_binary", "\x00\x01")):
        (folder / name).mkdir()
        (folder / name / "settings.json").write_text(text)
    (folder / "run_with_text_store").mkdir()
    (folder / "run_with_text_store" / "settings.json").write_text(json.dumps(whole))
    (folder / "run_with_text_store" / "store.sqlite").write_text("not a database" * 99)


def _write_settings(folder: Path) -> None:
    (folder / "cut.json").write_text('{"rounds": ')
    (folder / "list.json").write_text("[1]")
    (folder / "bad.yaml").write_text("a: [1")
    (folder / "bad.toml").write_text("a = = 1")
    (folder / "unknown.json").write_text('{"roundz": 3}')
    (folder / "pairs.jsonl").write_text('{"prompt": "a", "chosen": "b"}\n')


def _write_rows(path: Path, *rows: Mapping[str, object]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
