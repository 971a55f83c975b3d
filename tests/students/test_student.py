from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from palaestra.core.errors import RunError
from palaestra.core.records import Message, Request
from palaestra.core.seeding import Seeds
from palaestra.engines.base import BaseEngine
from palaestra.engines.transformers import TransformersEngine
from palaestra.models.registry import LoadedModel
from palaestra.runs.files import write_folder
from palaestra.students.student import SupervisedStudent
from palaestra.students.supervised import Method, Supervision
from palaestra.tasks.math.task import MathSkills

EXAMPLES = MathSkills().write_examples("geometry", "perimeter", 24, np.random.default_rng(0))
FEW = EXAMPLES[:8]
"""For tests of the weights after a training, whatever it taught: four steps."""
QUESTION = Request((Message("user", "A field is 7 long and 5 wide. What is its perimeter?"),))


def ask(student: SupervisedStudent) -> str:
    return student.engine().generate([QUESTION])[0][0].text  # type: ignore[union-attr]


@pytest.fixture(params=["full", pytest.param("lora", marks=pytest.mark.backends)])
def method(request: pytest.FixtureRequest) -> Method:
    method_name: Method = request.param
    return method_name


def make_test_student(
    model: LoadedModel, method: Method, epochs: int = 2, batch_size: int = 4, **options: float
) -> SupervisedStudent:
    supervision = Supervision(method, epochs, batch_size, learning_rate=1e-3 if method == "full" else 5e-3)
    return SupervisedStudent(model, supervision, **options)  # type: ignore[arg-type]


def test_a_student_learns_forgets_and_learns_the_same_again(fresh_nano: LoadedModel, method: Method) -> None:
    student = make_test_student(fresh_nano, method, epochs=4, batch_size=8)
    before, clean = ask(student), student.weights_sha256()
    student.learn(EXAMPLES, Seeds(0))
    learned, answer = student.weights_sha256(), ask(student)
    assert answer == "7+5=12. 12*2=24. Answer: 24"
    assert answer != before
    student.restore()
    assert ask(student) == before
    assert student.weights_sha256() == clean
    student.learn(EXAMPLES, Seeds(0))
    assert student.weights_sha256() == learned


def test_a_saved_student_loads_into_a_fresh_one(fresh_nano: LoadedModel, tmp_path: Path, method: Method) -> None:
    from palaestra.models import registry as models

    student = make_test_student(fresh_nano, method)
    student.learn(FEW, Seeds(0))
    write_folder(tmp_path / "student", student.save)
    other = make_test_student(models.load("nano", device="cpu"), method)
    other.load(tmp_path / "student")
    assert other.weights_sha256() == student.weights_sha256()
    assert ask(other) == ask(student)


def test_the_engine_uses_the_weights_of_the_last_training(fresh_nano: LoadedModel, method: Method) -> None:
    """A server that knows adapters by a number would go on with the first one."""
    student = make_test_student(fresh_nano, method, epochs=4)
    for answer in ("Answer: 1", "Answer: 2"):
        student.learn([replace(example, response=answer) for example in FEW], Seeds(0))
        assert ask(student) == answer


def test_a_saved_student_is_an_ordinary_checkpoint(fresh_nano: LoadedModel, tmp_path: Path) -> None:
    from palaestra.models import registry as models

    student = make_test_student(fresh_nano, "full")
    student.learn(FEW, Seeds(0))
    write_folder(tmp_path / "student", student.save)
    engine = TransformersEngine.from_loaded(models.load(str(tmp_path / "student"), device="cpu"))
    answer = engine.generate([QUESTION])[0][0]
    assert answer.text == ask(student)  # type: ignore[union-attr]


def test_a_killed_training_resumes_from_its_last_state(fresh_nano: LoadedModel, tmp_path: Path, method: Method) -> None:
    from palaestra.models import registry as models

    whole = make_test_student(fresh_nano, method)
    curve = whole.learn(FEW, Seeds(0))

    class Killed(Exception):
        pass

    def kill(step: int, total: int, loss: float) -> None:
        if step == 3:
            raise Killed

    student = make_test_student(models.load("nano", device="cpu"), method, keep_every=0.0)
    with pytest.raises(Killed):
        student.learn(FEW, Seeds(0), kill, tmp_path / "training")
    steps: list[int] = []
    again = make_test_student(models.load("nano", device="cpu"), method)
    assert again.learn(FEW, Seeds(0), lambda step, total, loss: steps.append(step), tmp_path / "training") == curve
    assert steps == [3, 4]
    assert again.weights_sha256() == whole.weights_sha256()


def test_the_state_of_another_training_is_not_used(fresh_nano: LoadedModel, tmp_path: Path) -> None:
    student = make_test_student(fresh_nano, "full", keep_every=0.0)
    student.learn(FEW, Seeds(0), progress=tmp_path / "training")
    steps: list[int] = []
    student.learn(FEW[:4], Seeds(0), lambda step, total, loss: steps.append(step), tmp_path / "training")
    assert steps[0] == 1


def test_a_damaged_checkpoint_is_one_clear_line(fresh_nano: LoadedModel, tmp_path: Path) -> None:
    student = make_test_student(fresh_nano, "full")
    with pytest.raises(RunError, match="damaged"):
        student.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(RunError, match="damaged"):
        student.load(tmp_path)


def test_the_checkpoint_of_another_model_is_refused(fresh_nano: LoadedModel, tmp_path: Path) -> None:
    from palaestra.students.pretraining import build_model

    build_model(fresh_nano.tokenizer, layers=4, width=64).save_pretrained(tmp_path)
    with pytest.raises(RunError, match="model nano"):
        make_test_student(fresh_nano, "full").load(tmp_path)


class RecordingPredictor(BaseEngine):
    """Records what a student hands over."""

    name = "recording"

    def __init__(self) -> None:
        self.received: list[object] = []

    def load_adapter(self, folder: Path) -> None:
        self.received.append(load_file(folder / "adapter_model.safetensors"))

    def unload_adapter(self) -> None:
        self.received.append("base")

    def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.received.append({name: tensor.clone() for name, tensor in weights})


def test_a_predictor_receives_every_new_set_of_weights_once(fresh_nano: LoadedModel, method: Method) -> None:
    predictor = RecordingPredictor()
    student = make_test_student(fresh_nano, method, predictor=predictor)  # type: ignore[arg-type]
    assert student.engine() is predictor
    assert predictor.received == []  # It already has the base weights.
    for _ in range(2):
        student.learn(FEW, Seeds(0))
        assert student.engine() is student.engine() is predictor
    first, second = predictor.received
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert all(torch.equal(first[name], second[name]) for name in first)  # The same training from the base weights.
    student.restore()
    student.engine()
    base = predictor.received[2]
    assert (
        base == "base"
        if isinstance(base, str)
        else not torch.equal(next(iter(base.values())), next(iter(first.values())))
    )  # type: ignore[attr-defined]
