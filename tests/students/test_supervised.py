from collections.abc import Sequence

import numpy as np
import pytest
import torch
from transformers import PretrainedConfig

from palaestra.core.errors import LessonError, MissingExtraError, ModelError
from palaestra.core.records import Example
from palaestra.core.seeding import Seeds
from palaestra.models.registry import LoadedModel
from palaestra.students.supervised import (
    Supervision,
    TrainingState,
    add_adapter,
    fine_tune,
    optimize,
    schedule_learning_rate,
    supervision_for,
)
from palaestra.tasks.math.task import MathSkills


def make_lesson(count: int = 24, seed: int = 0) -> Sequence[Example]:
    return MathSkills().write_examples("geometry", "", count, np.random.default_rng(seed))


SUPERVISION = Supervision(epochs=2, batch_size=8)


def copy_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def have_equal_weights(first: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], two[name]) for name in first)


def test_the_loss_falls_on_what_is_learned(fresh_nano: LoadedModel) -> None:
    curve = fine_tune(
        fresh_nano.weights, fresh_nano.tokenizer, make_lesson(), Supervision(epochs=6, batch_size=8), Seeds(0)
    )
    assert len(curve) == 18
    assert np.mean([loss for _, loss in curve[-3:]]) < 0.5 * np.mean([loss for _, loss in curve[:3]])


def test_the_weights_depend_on_the_seed() -> None:
    from palaestra.models import registry as models

    results = []
    for seed in (0, 0, 1):
        model = models.load("nano", device="cpu")
        fine_tune(model.weights, model.tokenizer, make_lesson(), SUPERVISION, Seeds(seed))
        results.append(copy_weights(model.weights))
    assert have_equal_weights(results[0], results[1])
    assert not have_equal_weights(results[0], results[2])


@pytest.mark.parametrize(("method", "optimizer"), [("full", "adamw"), ("full", "muon"), ("lora", "adamw")])
def test_an_interrupted_training_goes_on_to_the_same_weights(method: str, optimizer: str) -> None:
    from palaestra.models import registry as models

    supervision = Supervision(
        method=method,  # type: ignore[arg-type]
        optimizer=optimizer,  # type: ignore[arg-type]
        epochs=2,
        batch_size=8,
        dropout=0.1 if method == "lora" else 0.0,
    )
    states: list[TrainingState] = []

    def keep(state: TrainingState) -> None:
        if state.step == 3:
            copied = {name: t.clone() for name, t in state.weights.items()}
            moments = {k: {n: torch.as_tensor(t).clone() for n, t in m.items()} for k, m in state.moments.items()}
            states.append(TrainingState(3, copied, moments, list(state.curve)))

    def load_trainable() -> tuple[LoadedModel, torch.nn.Module]:
        model = models.load("nano", device="cpu")
        return model, add_adapter(model.weights, supervision, Seeds(0)) if method == "lora" else model.weights

    model, whole = load_trainable()
    curve = fine_tune(whole, model.tokenizer, make_lesson(), supervision, Seeds(0), keep_state=keep)
    model, rest = load_trainable()
    again = fine_tune(rest, model.tokenizer, make_lesson(), supervision, Seeds(0), state=states[0])
    assert again == curve
    assert have_equal_weights(copy_weights(whole), copy_weights(rest))


def test_an_adapter_leaves_the_base_as_it_was(fresh_nano: LoadedModel) -> None:
    before = copy_weights(fresh_nano.weights)
    adapted = add_adapter(fresh_nano.weights, Supervision("lora"), Seeds(0))
    fine_tune(adapted, fresh_nano.tokenizer, make_lesson(), Supervision("lora", epochs=1), Seeds(0))
    restored = copy_weights(adapted.unload())
    assert have_equal_weights(before, restored)


def test_training_leaves_the_global_generator_alone(fresh_nano: LoadedModel) -> None:
    before = torch.random.get_rng_state()
    adapted = add_adapter(fresh_nano.weights, Supervision("lora", dropout=0.1), Seeds(0))
    fine_tune(adapted, fresh_nano.tokenizer, make_lesson(8), Supervision("lora", epochs=1, dropout=0.1), Seeds(0))
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_loss_that_is_not_finite_stops_with_advice(fresh_nano: LoadedModel) -> None:
    with torch.no_grad():
        fresh_nano.weights.model.norm.weight.fill_(float("nan"))
    with pytest.raises(LessonError, match="learning rate"):
        fine_tune(fresh_nano.weights, fresh_nano.tokenizer, make_lesson(8), SUPERVISION, Seeds(0))


def test_the_learning_rate_rises_then_falls_to_nearly_zero() -> None:
    rates = [schedule_learning_rate(step, 100, 0.1) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == 1.0
    assert rates.index(1.0) == 9
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert 0 < rates[-1] < 0.02


def test_large_models_are_trained_with_an_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_module(count: int) -> torch.nn.Module:
        module = torch.nn.Module()
        module.register_parameter("weight", torch.nn.Parameter(torch.empty(count, device="meta")))
        module.config = PretrainedConfig(name_or_path="my-model")
        return module

    assert supervision_for(make_module(10**6)).method == "full"
    large = supervision_for(make_module(10**8))
    assert (large.method, large.learning_rate) == ("lora", 2e-4)
    assert supervision_for(make_module(10**8), "full", learning_rate=0.1).learning_rate == 0.1
    monkeypatch.setattr("palaestra.students.supervised.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"palaestra\[lora\]"):
        supervision_for(make_module(10**8))


def test_a_batch_that_does_not_fit_names_the_settings(fresh_nano: LoadedModel) -> None:
    def batch_loss(batch: Sequence[int]) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(ModelError, match=r"3 examples; .*--batch-size .*--method lora"):
        optimize(fresh_nano.weights, [[0, 1, 2]], batch_loss, Supervision(), Seeds(0))
