"""Vision architectures other than nano-vlm's agree with their own code in generation and training, in any batch."""

import pytest
import torch
from vision_models import build_model, idefics3, qwen2_vl

from palaestra.core.records import Example, ImagePart, Message, Request, Sampling, Split, TextPart
from palaestra.core.seeding import Seeds
from palaestra.engines.transformers import TransformersEngine
from palaestra.models.images import visual_prompt
from palaestra.models.registry import LoadedModel
from palaestra.students.supervised import Supervision, fine_tune
from palaestra.tasks.vision.task import VisionSkills

PROBLEMS = VisionSkills().problems(Split.TEST, 1, 0)
GREEDY = Sampling(max_tokens=6)
SUM = Message("user", (TextPart("What is 3 + 4?"),))


@pytest.fixture(params=[idefics3, qwen2_vl])
def other_model(nano: LoadedModel, request: pytest.FixtureRequest) -> LoadedModel:
    return build_model(request.param, nano.tokenizer)


def test_answers_of_other_architectures_equal_generate(other_model: LoadedModel) -> None:
    asked = [Request(p.messages, GREEDY) for p in PROBLEMS[::2]] + [Request((SUM,), GREEDY)]
    answers = [TransformersEngine.from_loaded(other_model, size).generate(asked) for size in (32, 4, 1)]
    ids = [[a[0].token_ids for a in several] for several in answers]  # type: ignore[union-attr]
    assert ids[0] == ids[1] == ids[2]
    assert len(set(ids[0])) > 5
    for request, mine in list(zip(asked, ids[0], strict=True))[::3]:
        seen = visual_prompt(other_model.processor, request.messages)
        prompt = torch.tensor([seen.ids])
        theirs = other_model.weights.generate(
            prompt, attention_mask=torch.ones_like(prompt), **seen.inputs, max_new_tokens=6, do_sample=False
        )
        assert tuple(theirs[0, len(seen.ids) :].tolist()) == mine


def lone_loss(model: LoadedModel, example: Example) -> tuple[float, int]:
    """The summed loss of one example, by the model's own forward and its own loss, and over how many tokens."""
    seen = visual_prompt(model.processor, example.messages)
    response = [*model.tokenizer.encode(example.response, add_special_tokens=False), model.tokenizer.eos_token_id]
    ids = torch.tensor([seen.ids + response])
    inputs = dict(seen.inputs)
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, len(response)))
    labels = torch.tensor([[-100] * len(seen.ids) + response])
    with torch.inference_mode():
        loss = model.weights(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels, **inputs).loss
    return float(loss) * len(response), len(response)


def mean(losses: list[tuple[float, int]]) -> float:
    return sum(loss for loss, _ in losses) / sum(count for _, count in losses)


def test_mixed_batches_train_on_the_models_own_loss(other_model: LoadedModel) -> None:
    # One step at hardly any learning rate: its loss is that of the model as it was.
    still = Supervision(epochs=1, batch_size=8, learning_rate=1e-30)

    def losses(examples: list[Example]) -> list[float]:
        curve = fine_tune(
            other_model.weights, other_model.tokenizer, examples, still, Seeds(0), processor=other_model.processor
        )
        return [loss for _, loss in curve]

    with_images = [Example(p.messages, f"Answer: {p.reference}") for p in PROBLEMS[:3]]
    none = Example((SUM,), "3+4=7. Answer: 7")
    alone = [lone_loss(other_model, example) for example in (*with_images, none)]
    assert losses([*with_images, none]) == [pytest.approx(mean(alone), rel=1e-4)]
    # Idefics3 stacks the pictures of a prompt: one and two of them do not share a batch.
    pictures = [part for p in PROBLEMS[:2] for part in p.messages[0].content if isinstance(part, ImagePart)]
    two = Example((Message("user", (pictures[0], TextPart("and"), pictures[1], TextPart("Same?"))),), "no, they differ")
    pair = [lone_loss(other_model, example) for example in (with_images[0], two)]
    apart = type(other_model.weights).__name__.startswith("Idefics3")
    expected = [mean([loss]) for loss in pair] if apart else [mean(pair)]
    assert sorted(losses([with_images[0], two])) == pytest.approx(sorted(expected), rel=1e-4)
