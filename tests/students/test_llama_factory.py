"""LLaMA-Factory as trainer. The tests with the real command run where `PALAESTRA_LLAMA_FACTORY` is its path."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from palaestra import teach
from palaestra.core.errors import LessonError, PalaestraError, SettingsError, UnknownNameError
from palaestra.core.records import Example, Message
from palaestra.core.seeding import Seeds
from palaestra.engines.transformers import TransformersEngine
from palaestra.models import registry as models
from palaestra.students.batches import encode
from palaestra.students.llama_factory import LlamaFactory, find_exception
from palaestra.students.registry import make_student
from palaestra.students.supervised import supervision_for

REAL = os.environ.get("PALAESTRA_LLAMA_FACTORY", "")
real = [pytest.mark.backends, pytest.mark.skipif(not REAL, reason="PALAESTRA_LLAMA_FACTORY is not set")]

EXAMPLES = [
    Example((Message("user", f"What is {a} + {b}?"),), f"{a}+{b}={a + b}. Answer: {a + b}", metadata={"rejected": "7"})
    for a in range(4)
    for b in range(3)
]


def make_pupil(kind: str, trainer: LlamaFactory, **options: Any) -> Any:
    model = models.load("nano")
    supervision = supervision_for(model.weights, "lora", epochs=2, batch_size=4, learning_rate=2e-3, rank=4)
    return make_student(kind, model, supervision, trainer=trainer, **options)


def write_command(folder: Path, body: str) -> str:
    """A command in place of `llamafactory-cli`, for what the real one cannot be made to do."""
    path = folder / "llamafactory-cli"
    path.write_text(f"#!/usr/bin/env python3\nimport json, os, re, sys, time\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


HELP = """
if "--help" in sys.argv:
    if "high" in sys.argv:
        sys.exit("llamafactory-cli: error: argument --lora_dropout: invalid float value: 'high'")
    sys.exit(print("usage: ...\\n  --lora_dropout X, --lora-dropout X\\n  --use_cpu [X]\\n  --no_use_cpu"))
"""
FAILING = """
output = re.search(r"^output_dir: (.*)$", open(sys.argv[2]).read(), re.M)[1]
os.makedirs(output)
with open(output + "/trainer_log.jsonl", "w") as log:
    for step in (1, 2, 3):
        print(json.dumps({"current_steps": step, "total_steps": 6, "loss": 1.0 / step}), file=log, flush=True)
print("Traceback (most recent call last):\\n  File 'a.py', line 1\\ntorch.OutOfMemoryError: CUDA out of memory")
print("wandb: You can sync this run\\n  0%|          | 3/6")
sys.exit(1)
"""


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("output_dir", "'output_dir' .*dataset.*template"),
        ("num_train_epochs", "'epochs'"),
    ],
)
def test_managed_keys_are_refused_and_named(key: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        LlamaFactory("true", {key: 1})


def test_a_missing_command_is_answered_with_what_to_do() -> None:
    with pytest.raises(SettingsError, match=r"'no-such-cli' .*pip install llamafactory.*command=PATH"):
        LlamaFactory("no-such-cli")


def test_a_missing_command_is_rejected_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="not found"):
        teach(trainer="llama-factory", trainer_kwargs={"command": "no-such-cli"}, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("lora_droput=0.1", "'lora_droput'; .*'lora_dropout'"),
        ("no_use_cpu=true", "'no_use_cpu'"),
        ("lora_dropout=high", "float value: 'high'"),
    ],
)
def test_options_are_checked_before_a_run_starts(option: str, message: str, tmp_path: Path) -> None:
    name, _, value = option.partition("=")
    options = {"command": str(write_command(tmp_path, HELP)), "use_cpu": True, name: True if value == "true" else value}
    with pytest.raises(PalaestraError, match=message):
        teach(trainer="llama-factory", trainer_kwargs=options, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_broken_command_is_rejected_with_its_exception(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"ModuleNotFoundError: .*'no_such_package'"):
        LlamaFactory(write_command(tmp_path, "import no_such_package")).check()


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("step 1\n\n", "step 1"),
        ("", "it printed nothing"),
        ("Traceback (most recent call last):\n  x\nKeyError: 'a'\n\nDuring handling of the above exception, another exception "
         "occurred:\n\nTraceback (most recent call last):\n  y\nlibrary.Broken: second\nsee the notes\n", "library.Broken: second"),
        ("[rank1]: Traceback (most recent call last):\n[rank1]:   File x\n[rank1]: ValueError: bad\n"
         "E1118 failed (exitcode: 1)\nTraceback (most recent call last):\n  z\n"
         "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=====\nTraceback (most recent call last):\n  z\n"
         "subprocess.CalledProcessError: Command '['torchrun']' returned non-zero exit status 1.\n", "ValueError: bad"),
    ],
)  # fmt: skip
def test_the_reason_of_a_failure_is_the_exception(output: str, line: str) -> None:
    assert find_exception(output) == line


def test_a_student_that_practises_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="got PracticingStudent"):
        make_pupil("practice", LlamaFactory("true"))


def test_a_failed_training_leaves_the_student_unchanged(tmp_path: Path) -> None:
    student = make_pupil("supervised", LlamaFactory(write_command(tmp_path, FAILING)))
    steps: list[tuple[int, int, float]] = []
    with pytest.raises(LessonError, match=r"step 3 \(exit code 1\): torch.OutOfMemoryError.*output.txt"):
        student.learn(EXAMPLES, Seeds(0), lambda *step: steps.append(step), tmp_path)
    assert steps == [(1, 6, 1.0), (2, 6, 0.5), (3, 6, 1.0 / 3)]
    assert len(student.engine().generate([])) == 0


def test_a_command_without_an_adapter_is_an_error(tmp_path: Path) -> None:
    student = make_pupil("supervised", LlamaFactory("true"))
    with pytest.raises(LessonError, match="without an adapter"):
        student.learn(EXAMPLES, Seeds(0), lambda *step: None, tmp_path)


TREE = """
import subprocess
code = "import os, sys, time; open(sys.argv[1] + '/' + str(os.getpid()), 'w'); time.sleep(600)"
for own_session in (False, True):
    subprocess.Popen([sys.executable, "-c", code, {folder!r}], start_new_session=own_session)
open({folder!r} + "/" + str(os.getpid()), "w")
time.sleep(600)
"""
"""A trainer with two workers, one of them in a session of its own, as torchrun has. Each leaves a file named by its pid."""


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("nothing happened within 20 seconds")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def write_tree(tmp_path: Path) -> tuple[str, Path]:
    (pids := tmp_path / "pids").mkdir()
    return write_command(tmp_path, TREE.format(folder=str(pids))), pids


def test_an_interrupt_ends_all_processes(tmp_path: Path) -> None:
    command, pids = write_tree(tmp_path)

    def interrupt() -> None:
        wait_for(lambda: len(list(pids.iterdir())) == 3)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        LlamaFactory(command).train(tmp_path, [], tmp_path / "work", {}, lambda *step: None)
    assert not [path.name for path in pids.iterdir() if is_alive(int(path.name))]


def test_all_processes_end_with_a_killed_driver(tmp_path: Path) -> None:
    command, pids = write_tree(tmp_path)
    code = (
        "import sys; from pathlib import Path; from palaestra.students.llama_factory import LlamaFactory; "
        "LlamaFactory(sys.argv[1]).train(Path('.'), [], Path(sys.argv[2]), {}, print)"
    )
    driver = subprocess.Popen([sys.executable, "-c", code, command, str(tmp_path / "work")])
    wait_for(lambda: len(list(pids.iterdir())) == 3)
    driver.kill()
    driver.wait()
    wait_for(lambda: not any(is_alive(int(path.name)) for path in pids.iterdir()))
    assert not [path.name for path in pids.iterdir() if is_alive(int(path.name))]


def test_every_attempt_has_its_own_folder(tmp_path: Path) -> None:
    """What an earlier attempt left, or still writes, is not read."""
    trainer = LlamaFactory(write_command(tmp_path, FAILING))
    steps: list[tuple[int, int, float]] = []
    for attempt in (1, 2):
        with pytest.raises(LessonError, match=f"attempt-{attempt}/output.txt"):
            trainer.train(tmp_path, [], tmp_path / "work", {}, lambda *step: steps.append(step))
    assert [step for step, *_ in steps] == [1, 2, 3, 1, 2, 3]


@pytest.fixture(scope="module")
def supervised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, list[tuple[int, float]]]:
    folder = tmp_path_factory.mktemp("supervised")
    student = make_pupil("supervised", LlamaFactory(REAL, {"use_cpu": True}))
    return student, folder, student.learn(EXAMPLES, Seeds(0), lambda *step: None, folder)


class TestTheRealCommand:
    pytestmark = real

    def test_it_trains_on_the_tokens_that_our_engines_send(self, supervised: Any) -> None:
        student, folder, losses = supervised
        assert [step for step, _ in losses] == [1, 2, 3, 4, 5, 6]
        text = (folder / "llama_factory" / "attempt-1" / "output.txt").read_text()
        ids = json.loads(re.search(r"^input_ids:\n(\[.*\])$", text, re.M)[1])  # type: ignore[index]
        labels = json.loads(re.search(r"^label_ids:\n(\[.*\])$", text, re.M)[1])  # type: ignore[index]
        encoded = encode(EXAMPLES[0], student.tokenizer, 256)
        assert ids == [*encoded.prompt_ids, *encoded.response_ids]
        assert labels == [-100] * len(encoded.prompt_ids) + list(encoded.response_ids)

    def test_the_adapter_is_what_peft_loads(self, supervised: Any) -> None:
        from peft import PeftModel

        student, folder, _ = supervised
        theirs = PeftModel.from_pretrained(
            models.load("nano").weights, folder / "llama_factory" / "attempt-1" / "adapter"
        ).eval()
        ids = torch.tensor([encode(EXAMPLES[0], student.tokenizer, 256).prompt_ids])
        base = models.load("nano").weights(ids).logits
        with torch.no_grad():
            torch.testing.assert_close(student._trained.eval()(ids).logits, theirs(ids).logits)
        assert not torch.allclose(base, theirs(ids).logits, atol=1e-2)

    def test_preferences_raise_the_chosen_answer_over_the_rejected(self, tmp_path: Path) -> None:
        student = make_pupil("preference", LlamaFactory(REAL, {"use_cpu": True}), sft_weight=0.0, samples=0)
        losses = student.learn(EXAMPLES, Seeds(0), lambda *step: None, tmp_path)
        assert losses[-1][1] < losses[0][1] == pytest.approx(0.693, abs=0.02)  # log 2 before the first update

    def test_wrong_overrides_are_refused_before_training(self, tmp_path: Path) -> None:
        LlamaFactory(REAL, {"use_cpu": True, "lora_dropout": 0.1, "lr_scheduler_kwargs": {"power": 2}}).check()
        with pytest.raises(UnknownNameError, match="'lora_dropout'"):
            LlamaFactory(REAL, {"lora_drop": 0.1}).check()
        with pytest.raises(SettingsError, match="float value: 'high'"):
            LlamaFactory(REAL, {"lora_dropout": "high"}).check()

    def test_a_failure_has_the_line_of_its_exception(self, tmp_path: Path) -> None:
        student = make_pupil("supervised", LlamaFactory(REAL, {"no_such_key": 1}))
        with pytest.raises(LessonError, match=r"step 0 .*: ValueError: .*no_such_key"):
            student.learn(EXAMPLES, Seeds(0), lambda *step: None, tmp_path)

    def test_a_taught_student_gains_and_its_adapter_can_be_loaded(self, tmp_path: Path) -> None:
        result = teach(
            trainer="llama-factory",
            trainer_kwargs={"command": REAL, "use_cpu": True},
            rounds=1,
            lesson_size=160,
            skills=["clock", "geometry", "groups"],
            validation=2,
            test=25,
            learning_rate=2e-3,
            out=tmp_path / "run",
            progress=False,
        )
        assert result.summary["gain_low"] > 0
        model = models.load(str(tmp_path / "run"))
        assert TransformersEngine.from_loaded(model).generate([]) == []
