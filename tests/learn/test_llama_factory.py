"""LLaMA-Factory as trainer. The tests with the real command run where `PALAESTRA_LLAMA_FACTORY` is its path."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from palaestra import teach
from palaestra.core.errors import LessonError, SettingsError
from palaestra.core.records import Example, Message
from palaestra.core.seeding import Seeds
from palaestra.engines import models
from palaestra.learn.batches import encode
from palaestra.learn.llama_factory import LlamaFactory
from palaestra.learn.students import make_student
from palaestra.learn.supervised import supervision_for

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


FAILING = """
output = re.search(r"^output_dir: (.*)$", open(sys.argv[2]).read(), re.M)[1]
os.makedirs(output)
with open(output + "/trainer_log.jsonl", "w") as log:
    for step in (1, 2, 3):
        print(json.dumps({"current_steps": step, "total_steps": 6, "loss": 1.0 / step}), file=log, flush=True)
print("torch.OutOfMemoryError: CUDA out of memory")
sys.exit(1)
"""


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("output_dir", "'output_dir' is managed by Palaestra, as are .*dataset.*template"),
        ("num_train_epochs", "use the setting 'epochs'"),
    ],
)
def test_managed_keys_are_refused_and_named(key: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        LlamaFactory("true", {key: 1})


def test_a_missing_command_is_answered_with_what_to_do() -> None:
    with pytest.raises(SettingsError, match=r"'no-such-cli' was not found; .*pip install llamafactory.*command=PATH"):
        LlamaFactory("no-such-cli")


def test_a_run_with_a_missing_command_is_refused_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="was not found"):
        teach(trainer="llama-factory", trainer_options=["command=no-such-cli"], out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_student_that_practises_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="got PractisingStudent"):
        make_pupil("practice", LlamaFactory("true"))


def test_a_failure_half_way_names_step_and_reason_and_leaves_the_student(tmp_path: Path) -> None:
    student = make_pupil("supervised", LlamaFactory(write_command(tmp_path, FAILING)))
    steps: list[tuple[int, int, float]] = []
    with pytest.raises(LessonError, match=r"failed at step 3 \(exit code 1\): torch.OutOfMemoryError.*output.txt"):
        student.learn(EXAMPLES, Seeds(0), lambda *step: steps.append(step), tmp_path)
    assert steps == [(1, 6, 1.0), (2, 6, 0.5), (3, 6, 1.0 / 3)]
    assert len(student.engine().generate([])) == 0


def test_a_command_without_an_adapter_is_an_error(tmp_path: Path) -> None:
    student = make_pupil("supervised", LlamaFactory("true"))
    with pytest.raises(LessonError, match="ended without an adapter"):
        student.learn(EXAMPLES, Seeds(0), lambda *step: None, tmp_path)


def test_an_interrupt_ends_the_process(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    body = (
        f"open({str(pid)!r} + '.part', 'w').write(str(os.getpid()))\nos.rename({str(pid)!r} + '.part', {str(pid)!r})\n"
    )
    trainer = LlamaFactory(write_command(tmp_path, f"{body}time.sleep(600)\n"))

    def interrupt() -> None:
        while not pid.exists():
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        trainer.train(tmp_path, [], tmp_path / "work", {}, lambda *step: None)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


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
        text = (folder / "llama_factory" / "output.txt").read_text()
        ids = json.loads(re.search(r"^input_ids:\n(\[.*\])$", text, re.M)[1])  # type: ignore[index]
        labels = json.loads(re.search(r"^label_ids:\n(\[.*\])$", text, re.M)[1])  # type: ignore[index]
        encoded = encode(EXAMPLES[0], student.tokenizer, 256)
        assert ids == [*encoded.prompt_ids, *encoded.response_ids]
        assert labels == [-100] * len(encoded.prompt_ids) + list(encoded.response_ids)

    def test_the_adapter_is_what_peft_loads(self, supervised: Any) -> None:
        from peft import PeftModel

        student, folder, _ = supervised
        theirs = PeftModel.from_pretrained(models.load("nano").weights, folder / "llama_factory" / "adapter").eval()
        ids = torch.tensor([encode(EXAMPLES[0], student.tokenizer, 256).prompt_ids])
        base = models.load("nano").weights(ids).logits
        with torch.no_grad():
            torch.testing.assert_close(student._trained.eval()(ids).logits, theirs(ids).logits)
        assert not torch.allclose(base, theirs(ids).logits, atol=1e-2)

    def test_preferences_raise_the_chosen_answer_over_the_rejected(self, tmp_path: Path) -> None:
        student = make_pupil("preference", LlamaFactory(REAL, {"use_cpu": True}), sft_weight=0.0, samples=0)
        losses = student.learn(EXAMPLES, Seeds(0), lambda *step: None, tmp_path)
        assert losses[-1][1] < losses[0][1] == pytest.approx(0.693, abs=0.02)  # log 2 before the first update

    def test_a_wrong_override_fails_with_its_message(self, tmp_path: Path) -> None:
        student = make_pupil("supervised", LlamaFactory(REAL, {"no_such_key": 1}))
        with pytest.raises(LessonError, match=r"failed at step 0 .*no_such_key"):
            student.learn(EXAMPLES, Seeds(0), lambda *step: None, tmp_path)

    def test_a_taught_student_gains_and_its_adapter_can_be_loaded(self, tmp_path: Path) -> None:
        result = teach(
            trainer="llama-factory", trainer_options=[f"command={REAL}", "use_cpu=true"], rounds=1, lesson_size=160,
            skills=["clock", "geometry", "groups"], validation=2, test=25, learning_rate=2e-3, out=tmp_path / "run", progress=False,
        )  # fmt: skip
        assert result.summary["gain_low"] > 0
        model = models.load(str(tmp_path / "run"))
        assert model.engine().generate([]) == []
