"""Wrong inputs of the command line and of Python calls: one line with the remedy, and nothing is written."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import wrong_inputs

import palaestra
from palaestra.cli.main import main
from palaestra.core.errors import PalaestraError
from palaestra.core.process import repeat_event
from palaestra.core.records import Event, Split
from palaestra.recipes.own_data import store_data

COMMANDS = [
    # Names
    ("teech", "teech"),
    ("train --envv CartPole-v1", "--envv"),
    ("train --env CartPol-v1", "did you mean 'CartPole-v1'"),
    ("train --env CartPole-v9", "CartPole-v9"),
    ("train --env NoSuch/Env-v0", "NoSuch"),
    ("train --env no_such_module:Env-v0", "no_such_module"),
    ("train --env textarena:GuessTheNumbr-v0", "did you mean 'GuessTheNumber-v0'", "more"),
    ("train --env text:FrozenLak-v1", "did you mean 'FrozenLake-v1'"),
    ("train --env text:CartPole-v1", "cannot be written as text"),
    ("train --env palaestra/Text-v0", "'env_id'", "text:ID"),
    ("train --env palaestra/Prompts-v0", "'prompts'"),
    ("train --algorithm sarsa", "algorithm 'sarsa'; Known"),
    ("train --algorithm grpp --help", "did you mean 'grpo'"),
    ("train --model nanoo", "did you mean 'nano'"),
    ("train --model ./nowhere", "nowhere"),
    ("train --task math-skils", "did you mean 'math-skills'"),
    ("train --engine tgi", "engine"),
    ("train --executor kubernetes", "Known: inline, processes, ray"),
    ("train --executor processes:x", "processes"),
    ("evaluate --task math-skils", "did you mean 'math-skills'"),
    ("evaluate --model nanoo", "did you mean 'nano'"),
    ("evaluate --model openay:gpt", "openai"),
    ("evaluate --skill adition", "did you mean 'addition'"),
    ("evaluate --task-option skil=1", "no option 'skil'"),
    ("evaluate --plugin nowhere.py", "nowhere.py"),
    ("evaluate --plugin broken.py", "broken.py"),
    ("evaluate --plugin exits.py", "exits.py"),
    ("evaluate --plugin no_such_module", "no_such_module"),
    ("teach --teacher skil_tree", "did you mean 'skill_tree'"),
    ("teach --learning supervized", "did you mean 'supervised'"),
    ("teach --skill adition", "did you mean 'addition'"),
    ("teach --quality on --check lenght", "Known: agreement"),
    ("teach --student nanoo", "did you mean 'nano'"),
    ("teach --writer nanoo", "did you mean 'nano'"),
    ("teach --teacher-option epsylon=1", "epsylon"),
    ("teach --prompts nowhere", "nowhere"),
    ("teach --skills-file nowhere.json", "nowhere.json"),
    ("research --task prisoners_dilema --agent baseline", "did you mean 'prisoners_dilemma'"),
    ("research --agent modle", "did you mean 'model'"),
    ("research --agent script:nowhere.txt", "nowhere.txt"),
    ("research --agent baseline --sandbox bubblerap", "did you mean 'bubblewrap'"),
    ("research --agent baseline --mlgym nowhere", "nowhere"),
    ("research bench --tasks grid_mace --agents baseline", "did you mean 'grid_maze'"),
    ("research bench --tasks grid_maze --agents basline", "did you mean 'baseline'"),
    ("research --model nano --parser last_blok", "did you mean 'last_block'"),
    ("research --model nano --command submitt", "did you mean 'submit'"),
    ("research --model nano --history lastt:3", "did you mean 'last'"),
    ("list teacher", "did you mean 'teachers'"),
    ("models get smolm2", "did you mean 'smollm2'"),
    ("export palaestra/Guess-v0 --to verifierz", "did you mean 'verifiers'"),
    ("export CartPole-v1 --to verifiers", "turn environment"),
    ("report nowhere", "nowhere does not exist"),
    ("report a_file", "a_file"),
    ("serve --model nanoo", "did you mean 'nano'"),
    # Values
    ("teach --rounds x", "--rounds"),
    ("teach --rounds 0", "at least 1; got 0"),
    ("teach --state maybe", "'state'"),
    ("teach --learning-rate nan", "finite number"),
    ("teach --verify agree:3", "agreement:N"),
    ("evaluate --split tests", "'split'"),
    ("evaluate --temperature -1", "at least 0"),
    ("evaluate --samples 4", "set a temperature"),
    ("evaluate --task-option shots", "name=value"),
    ("evaluate --limit 1.5", "--limit"),
    ("train --algorithm ppo --gamma 1.5", "expected 0 to 1; got 1.5"),
    ("train --algorithm grpo --episodes 10 --group-size 4", "multiple of the group size 4"),
    ("train --learning-rate fast", "--learning-rate"),
    ("train --policy llm", "'policy'"),
    ("train --reward-weight 1", "'reward'"),
    ("train --seed -1", "at least 0"),
    ("train --env palaestra/Guess-v0 --env-option low=x", "low", "got 'x'"),
    ("pretrain --width 33", "multiple of 32"),
    ("serve --port 99999", "--port"),
    ("serve --max-batch 0", "--max-batch"),
    ("view --port x", "--port"),
    ("research --top-p 2 --agent baseline", "at most 1; got 2.0"),
    ("research bench --tasks grid_maze --agents baseline --seeds 0", "at least 1 seed"),
    ("teach --seeds 0", "at least 1 seed"),
    ("teach --settings cut.json", "not JSON"),
    ("teach --settings list.json", "names and values"),
    ("teach --settings bad.yaml", "not YAML"),
    ("teach --settings bad.toml", "not TOML"),
    ("teach --settings unknown.json", "did you mean 'rounds'"),
    ("teach --settings nowhere.json", "nowhere.json does not exist"),
    ("resume", "RUN"),
    ("compare a_file", "RUN"),
    # Options without effect
    ("train --env CartPole-v1 --model nano", "no effect"),
    ("train --env CartPole-v1 --max-tokens 9", "no effect"),
    ("train --n-steps 4", "no effect"),
    ("train --prompts good.jsonl", "'reward'"),
    ("train --method full --rank 4", "no effect"),
    ("train --rank 4", "'rank' has no effect"),
    ("train --critic separate", "'critic' has no effect"),
    ("train --env palaestra/Guess-v0 --reward mine.py:good_reward", "'reward' has no effect"),
    ("train --env palaestra/Guess-v0 --task math-skills", "'task' has no effect"),
    ("train --env palaestra/CoT-v0 --prompts good.jsonl --reward mine.py:good_reward", "'prompts' has no effect"),
    ("train --prompts good.jsonl --reward mine.py:good_reward --task good.jsonl", "'task' has no effect"),
    ("train --prompts good.jsonl --reward mine.py:good_reward --task-option scorer=exact", "no effect"),
    ("train --task-option scorer=exact", "no option 'scorer'"),
    ("train --evaluation 0 --evaluate-every 2", "no effect"),
    ("train --worker-gpus 1", "no effect"),
    ("evaluate --top-p 0.5", "no effect"),
    ("evaluate --worker-cpus 2", "no effect"),
    ("evaluate --max-cost 1", "no effect"),
    ("evaluate --call-timeout 9", "no effect"),
    ("evaluate --model openai:gpt-4o --device cpu", "no effect"),
    ("evaluate --model nano --engine-option a=1", "'engine' to 'vllm'"),
    ("teach --planner nano --teacher no_state", "planner"),
    ("teach --verifier nano", "'verify'"),
    ("teach --max-calls 9", "no effect"),
    ("teach --cache mine.sqlite", "no effect"),
    ("teach --check readable", "no effect"),
    ("teach --categories 4", "'discover'"),
    ("teach --discover-train 4", "'discover'"),
    ("teach --method full --rank 4", "no effect"),
    ("teach --rank 4", "'rank' has no effect"),
    ("teach --trainer-option a=1", "llama-factory"),
    ("teach --in-flight 4", "no effect"),
    ("teach --references", "'references' has no effect"),
    ("teach --references --writer nano", "'references' has no effect"),
    ("teach --references --teacher skill_list", "'references' has no effect"),
    ("research --agent baseline --model nano", "no effect"),
    ("research --agent baseline --temperature 1", "no effect"),
    ("research --model nano --top-p 0.5", "no effect"),
    ("research --model nano --max-cost 1", "no effect"),
    ("export palaestra/Guess-v0 --to verifiers --merge", "--merge cannot be used"),
    ("export a_file --to model --private", "--push"),
    ("serve --env palaestra/Guess-v0", "--capture"),
    ("serve --capture --receive-weights", "--receive-weights"),
    ("serve --engine-option tensor_parallel_size=2", "vllm:nano"),
    ("train --env CoTEnv-v0 --executor ray --engine vllm --engine-option tensor_parallel_size=2", "'worker_gpus': expected 2"),
    # Own code
    ("evaluate --task nowhere.py:Task", "nowhere.py"),
    ("evaluate --task mine.py:Nothing", "no 'Nothing'"),
    ("evaluate --task mine.py:NUMBER", "register its class"),
    ("evaluate --task mine.py:NoTask", "no 'name'"),
    ("evaluate --task mine.py:NoSkills", "skills returned {}"),
    ("evaluate --task mine.py:ShortProblems", "ShortProblems.problems", "per_skill"),
    ("evaluate --task mine.py:ShortScore", "ShortScore.score", "(problem, completion)"),
    ("evaluate --task good.jsonl --task-option scorer=exakt", "did you mean 'exact'"),
    ("evaluate --task good.jsonl --task-option scorer=mine.py:nothing", "no 'nothing'"),
    ("evaluate --task good.jsonl --task-option scorer=mine.py:NUMBER", "function"),
    ("evaluate --task good.jsonl --task-option scorer=mine.py:score_nothing", "score_nothing must take the response"),
    ("evaluate --task good.jsonl --task-option scorer=mine.py:score_three", "score_three", "judge"),
    ("teach --teacher mine.py:NoTeacher", "no method 'write'"),
    ("teach --teacher mine.py:ShortTeacher", "ShortTeacher.write", "(state, size, generator)"),
    ("teach --teacher mine.py:TaskOnly", "TaskOnly"),
    ("teach --teacher mine.py:NUMBER", "NUMBER"),
    ("train --env mine.py:NoEnv", "NoEnv"),
    ("train --env mine.py:NoSpaces", "NoSpaces"),
    ("train --env mine.py:ShortReset", "ShortReset.reset", "seed"),
    ("train --env mine.py:ShortStep", "ShortStep.step", "action"),
    ("train --env mine.py:BrokenEnv", "no simulator"),
    ("train --env mine.py:make_nothing", "make_nothing"),
    ("train --env mine.py:Nothing", "Nothing"),
    ("train --prompts good.jsonl --reward mine.py:nothing", "no 'nothing'"),
    ("train --prompts good.jsonl --reward mine.py:NUMBER", "reward function"),
    ("train --prompts good.jsonl --reward mine.py:no_arguments", "takes nothing"),
    ("train --prompts good.jsonl --reward mine.py:other_arguments", "sentences"),
    ("train --prompts good.jsonl --reward length", "FILE.py:NAME"),
    ("train --prompts nowhere.jsonl --reward mine.py:good_reward", "nowhere.jsonl does not exist"),
    ("train --prompts no_json.jsonl --reward mine.py:good_reward", "row 2"),
    # Data
    ("evaluate --task nowhere.jsonl", "nowhere.jsonl does not exist"),
    ("evaluate --task empty.jsonl", "no rows"),
    ("evaluate --task blank.csv", "no rows"),
    ("evaluate --task header.csv", "no rows"),
    ("evaluate --task ragged.csv", "line 3"),
    ("evaluate --task quotes.csv", "line"),
    ("evaluate --task latin.csv", "latin.csv", "utf-8"),
    ("evaluate --task latin.jsonl", "latin.jsonl", "utf-8"),
    ("evaluate --task no_json.jsonl", "row 2"),
    ("evaluate --task numbers.jsonl", "row 1"),
    ("evaluate --task no_list.json", "no_list.json"),
    ("evaluate --task no_json.json", "no_json.json"),
    ("evaluate --task no_table.parquet", "no_table.parquet"),
    ("evaluate --task sheet.xlsx", "sheet.xlsx", "csv"),
    ("evaluate --task cut.jsonl.gz", "cut.jsonl.gz"),
    ("evaluate --task no_gzip.jsonl.gz", "no_gzip.jsonl.gz"),
    ("evaluate --task ./nothing_here", "nothing_here"),
    ("evaluate --task ./two_files", "2 files of data"),
    ("evaluate --task no_question.jsonl", "question=COLUMN"),
    ("evaluate --task no_answers.jsonl", "answer=COLUMN"),
    ("evaluate --task one_without.jsonl", "row 4"),
    ("evaluate --task empty_question.jsonl", "row 4", "empty"),
    ("evaluate --task bad_chat.jsonl", "role and content"),
    ("evaluate --task bad_role.jsonl", "nobody"),
    ("evaluate --task only_assistant.jsonl", "before the assistant's"),
    ("evaluate --task bad_choice.jsonl", "row 1", "among the choices"),
    ("evaluate --task one_choice.jsonl", "at least 2 choices"),
    ("evaluate --task bad_split.jsonl", "'dew'"),
    ("evaluate --task bad_tests.jsonl", "row 1"),
    ("evaluate --task bad_regex.jsonl --task-option scorer=regex", "row 1"),
    ("evaluate --task one_split.jsonl", "test"),
    ("evaluate --task no_image.jsonl", "nowhere.png"),
    ("evaluate --task words.jsonl --task-option scorer=number", "'blue'"),
    ("evaluate --task good.jsonl --task-option question=frage", "frage"),
    ("evaluate --task good.jsonl --task-option template={frage}", "frage"),
    ("evaluate --task good.jsonl --skill sum", "did you mean 'sums'"),
    ("evaluate --task hf:nowhere", "owner/name"),
    ("data nowhere.jsonl", "nowhere.jsonl does not exist"),
    ("data good.jsonl --model nanoo", "did you mean 'nano'"),
    ("train-reward --datasets-path nowhere.jsonl", "nowhere.jsonl"),
    ("train-reward --datasets-path pairs.jsonl", "rejected"),
    # Run folders
    *((f"{command} {run}", *words) for run, words in (
        ("run_without_store", ["store.sqlite"]), ("run_of_later_version", ["another version"]),
        ("run_without_recipe", ["damaged"]), ("run_with_list", ["damaged"]), ("run_cut", ["cannot be read"]),
        ("run_binary", ["cannot be read"]), ("run_with_text_store", ["damaged"]), ("nothing_here", ["not a run folder"]),
    ) for command in ("resume", "report", "diagnose")),
    ("resume run_of_unknown_recipe", "juggle"),
    ("compare run_cut nothing_here", "cannot be read"),
    ("export nothing_here --to model", "not a run folder"),
    ("export run_cut --to dataset", "cannot be read"),
    ("view nowhere", "nowhere"),
    ("evaluate --model run_cut", "run_cut"),
    ("evaluate --out a_file/run", "is a file"),
    ("teach --out unwritable/run", "read-only"),
    ("teach --out two_files", "not empty"),
    ("train --out unwritable", "read-only"),
    ("research --agent baseline --out a_file", "is a file"),
    ("export palaestra/Guess-v0 --to verifiers --out a_file", "a_file"),
    # Devices, addresses
    ("evaluate --device nonsense", "'device'"),
    *((f"{command} --device cuda", "'cuda'") for command in ("evaluate", "teach", "train", "serve", "train-reward")),
    ("research --model nano --device cuda", "'cuda'"),
    ("serve --host nowhere.invalid", "nowhere.invalid"),
    ("view nothing_here --host nowhere.invalid", "nowhere.invalid"),
    ("serve --host 203.0.113.7", "203.0.113.7"),
]  # fmt: skip

CALLS: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (palaestra.train, {"roundz": 3}, "did you mean"),
    (palaestra.train, {"iterations": "many"}, "'iterations'"),
    (palaestra.train, {"env": 3}, "env must be an id"),
    (palaestra.train, {"env": "CartPole-v1", "model": "nano"}, "no effect"),
    (palaestra.train, {"prompts": [{"prompt": "Hi"}], "reward": 3}, "'reward'"),
    (palaestra.train, {"prompts": [3], "reward": lambda completions: [1.0]}, "3"),
    (palaestra.train, {"prompts": ["Hi"], "reward_funcs": len}, "'reward'"),
    (palaestra.train, {"prompts": ["Hi"], "reward": len, "model": dict}, "'model'"),
    (palaestra.train, {"prompts": {"prompt": "Hi"}, "reward": len}, "'prompts'"),
    (palaestra.teach, {"teacher": object()}, "'teacher'"),
    (palaestra.train, {"prompts": [], "reward": lambda completions: [1.0]}, "no rows"),
    (palaestra.train, {"prompts": [{"prompt": "Hi"}], "reward": lambda: [1.0]}, "takes nothing"),
    (palaestra.train, {"prompts": [{"prompt": "Hi"}], "reward": len, "reward_weights": [1, 2]}, "'reward_weights'"),
    (palaestra.train, {"env_kwargs": ["skills=addition"]}, "names and values"),
    (palaestra.train, {"algorithm": palaestra.GRPOConfig(group_size=7)}, "group size 7"),
    (palaestra.train, {"algorithm": "grpo", "gamma": 0.5}, "'gamma' has no effect"),
    (palaestra.evaluate, {"task": [{"question": "What is 1 + 2?"}]}, "answer=COLUMN"),
    (palaestra.evaluate, {"task": wrong_inputs.write_files}, "write_files"),
    (palaestra.evaluate, {"skills": "addition"}, "'skills'"),
    (palaestra.evaluate, {"settings": {"model": "nano"}}, "EvaluateSettings"),
    (palaestra.evaluate, {"top_p": 0.5}, "set a temperature"),
    (palaestra.evaluate, {"model": 3}, "'model'"),
    (palaestra.teach, {"teacher": len}, "teacher"),
    (palaestra.teach, {"rounds": 2.5}, "'rounds'"),
    (palaestra.teach, {"max_calls": 9}, "no language model"),
    (palaestra.run_research, {"agent": "baseline", "model": "nano"}, "asks no model"),
    (palaestra.make_task, {"name": "good.jsonl", "scorer": "exakt"}, "did you mean 'exact'"),
    (palaestra.resume, {"folder": "nothing_here"}, "not a run folder"),
    (palaestra.resume, {"folder": "run_of_unknown_recipe"}, "juggle"),
    (palaestra.load_policy, {"folder": "nothing_here"}, "not a run folder"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that the rows name."""
    path = tmp_path_factory.mktemp("wrong")
    wrong_inputs.write_files(path)
    return path


def list_contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder and their contents, without the lock and the traceback of a run that could not be resumed."""
    paths = (path for path in folder.rglob("*") if path.name not in ("run.lock", "traceback.txt", "log.txt"))
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in paths}


@pytest.fixture
def untouched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder as the working directory, in which nothing may be written."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    # The tests may run as root, who may write everywhere.
    may_access = os.access
    monkeypatch.setattr("os.access", lambda path, mode: "unwritable" not in str(path) and may_access(path, mode))

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a wrong input was not refused before a model, a run or a server was started")

    for name in ("models.registry.load", "runs.run.Run.create", "research.workspace.env.ResearchEnv.reset"):
        monkeypatch.setattr(f"palaestra.{name}", refuse)
    monkeypatch.setattr("uvicorn.Server.run", refuse)
    before = list_contents(folder)
    yield folder
    assert list_contents(folder) == before


def run_command(
    command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> tuple[int | str | None, str]:
    """The exit code of a command in this process, and its stderr."""
    monkeypatch.setattr(sys, "argv", ["palaestra", *shlex.split(command)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capfd.readouterr().err


@pytest.mark.parametrize(
    ("command", "words"), [(row[0], row[1:]) for row in COMMANDS], ids=[row[0] for row in COMMANDS]
)
def test_a_wrong_command_is_answered_in_one_line(
    command: str,
    words: tuple[str, ...],
    untouched: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if "'cuda'" in words and torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    code, error = run_command(command, monkeypatch, capfd)
    assert code == 2, error
    assert error.startswith("error: "), error
    assert error.count("\n") == 1, error
    for word in words:
        assert word in error


@pytest.mark.parametrize(("call", "arguments", "words"), CALLS)
def test_a_wrong_call_is_answered_in_one_line(
    call: Callable[..., Any], arguments: dict[str, Any], words: str, untouched: Path
) -> None:
    with pytest.raises(PalaestraError) as raised:
        call(**arguments)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("package", "command", "extra"),
    [
        ("peft", "train --method lora", "lora"),
        ("peft", "teach --method lora", "lora"),
        ("peft", "train --model smollm2", "lora"),
        ("peft", "train --model ./large", "lora"),
        ("peft", "teach --student smollm2", "lora"),
        ("peft", "teach --student ./large", "lora"),
        ("peft", "train --model ./adapter", "lora"),
        ("peft", "evaluate --model ./adapter", "lora"),
        ("textarena", "train --env textarena:GuessTheNumber-v0", "textarena"),
        ("datasets", "evaluate --task hf:owner/name", "data"),
        ("datasets", "evaluate --task no_table.parquet", "data"),
        ("math_verify", "evaluate --task good.jsonl --task-option scorer=math", "math"),
        ("wandb", "train --wandb project", "wandb"),
        ("ray", "evaluate --executor ray", "ray"),
        ("uvicorn", "serve", "serve"),
        ("uvicorn", "view nothing_here", "serve"),
    ],
)
def test_a_missing_package_is_named_before_a_model_is_loaded(
    package: str,
    command: str,
    extra: str,
    untouched: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    code, error = run_command(command, monkeypatch, capfd)
    assert (code, error.count("\n")) == (2, 1), error
    assert f"pip install 'palaestra[{extra}]'" in error


@pytest.mark.parametrize("command", ["serve", "view nothing_here"])
def test_a_port_in_use_is_one_line(
    command: str, untouched: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, error = run_command(f"{command} --port {taken.getsockname()[1]}", monkeypatch, capfd)
    assert (code, error.count("\n")) == (2, 1), error
    assert "is in use; choose another with --port" in error


def test_bars_of_other_libraries_are_hidden_and_come_back(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets
    from transformers.utils import logging

    from palaestra.models.registry import load

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with warnings.catch_warnings(action="ignore"):
        logging.enable_progress_bar()
    datasets.enable_progress_bars()
    try:
        load("nano", device="cpu")
        data = datasets.Dataset.from_list([wrong_inputs.GOOD])
        palaestra.make_task(store_data(data)).problems(Split.TEST, 1, 0)
        assert "it/s" not in capfd.readouterr().err
        assert logging.is_progress_bar_enabled()
        assert not datasets.utils.are_progress_bars_disabled()
    finally:
        logging.disable_progress_bar()


def test_slow_work_sends_events() -> None:
    events: list[Event] = []
    with repeat_event(events.append, lambda: Event("write", len(events), 9), seconds=0.02):
        time.sleep(0.3)
    count = len(events)
    assert count >= 3
    time.sleep(0.1)
    assert len(events) == count
    assert events[2] == Event("write", 2, 9)
