"""Students side by side learn what a single student learns."""

import numpy as np
import pytest
import torch
from tiny_models import tiny_model

from palaestra.core.errors import LessonError, ModelError
from palaestra.core.records import Example, Message, Request, Sampling, Split
from palaestra.core.seeding import Seeds
from palaestra.models.registry import LoadedModel, load
from palaestra.students.stacked import StackedStudents
from palaestra.students.student import SupervisedStudent
from palaestra.students.supervised import Supervision
from palaestra.tasks.math.task import MathSkills

TASK = MathSkills()
SHORT = Supervision(epochs=2, batch_size=4)


def write(skill: str, count: int, seed: int = 0) -> list[Example]:
    return TASK.write_examples(skill, "", count, np.random.default_rng(seed))


def test_each_learns_what_a_single_student_learns() -> None:
    lessons = [write("percent", 10), write("clock", 10)]
    stacked = StackedStudents(load("nano"), 2, SHORT, device="cpu")
    base = {name: weight[0].clone() for name, weight in stacked.weights.items()}
    rows = [stacked.store(lesson) for lesson in lessons]
    stacked.learn(rows, [Seeds(1), Seeds(2)])
    for place, lesson in enumerate(lessons):
        student = SupervisedStudent(load("nano"), SHORT)
        student.learn(lesson, Seeds(place + 1))
        # AdamW turns the rounding of gradients near 0 into steps, so weights are compared by the change that they learned.
        for name, expected in student._trainable_weights().items():
            change, difference = expected - base[name], stacked.weights[name][place] - expected
            assert difference.norm() < 0.01 * change.norm(), name


def test_solved_means_that_greedy_decoding_gives_the_response() -> None:
    problems = TASK.problems(Split.VALIDATION, 4, 0)
    examples = [Example(problem.messages, problem.metadata["worked"]) for problem in problems]
    stacked = StackedStudents(load("nano"), 2, device="cpu")
    solved_KN, logprobs_KN = stacked.measure(stacked.store(examples))
    engine = SupervisedStudent(load("nano")).engine()
    completions = engine.generate([Request(example.messages, Sampling(max_tokens=72)) for example in examples])
    texts = [completion.text == example.response for (completion,), example in zip(completions, examples, strict=True)]
    assert 0.2 < np.mean(texts) < 0.9
    assert solved_KN.tolist() == [texts, texts]
    assert (logprobs_KN < 0).all()
    assert logprobs_KN[0][solved_KN[0]].mean() > logprobs_KN[0][~solved_KN[0]].mean()


def test_restore_returns_to_the_kept_weights() -> None:
    stacked = StackedStudents(load("nano"), 1, SHORT, device="cpu")
    rows = stacked.store(write("percent", 4))
    name = "model.norm.weight"
    start = stacked.weights[name].clone()
    stacked.learn([rows], [Seeds(0)])
    learned = stacked.weights[name].clone()
    assert not torch.equal(learned, start)
    stacked.keep_as_base()
    stacked.learn([rows], [Seeds(1)])
    stacked.restore()
    assert torch.equal(stacked.weights[name], learned)


def test_long_examples_are_refused() -> None:
    stacked = StackedStudents(load("nano"), 1, device="cpu")
    with pytest.raises(LessonError, match="256"):
        stacked.store([Example((Message("user", "7 " * 300),), "7")])


def test_other_architectures_are_refused() -> None:
    nano = load("nano")
    with pytest.raises(ModelError, match="llama"):
        StackedStudents(LoadedModel("gpt2", tiny_model("gpt2"), nano.tokenizer), 1)
