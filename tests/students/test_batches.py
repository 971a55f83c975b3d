import numpy as np
import pytest

from palaestra.core.errors import LessonError
from palaestra.core.records import Example, Message, Request
from palaestra.core.seeding import plan_batches
from palaestra.engines.transformers import TransformersEngine
from palaestra.models.registry import LoadedModel
from palaestra.students.batches import IGNORE, Encoded, collate, encode

EXAMPLE = Example((Message("user", "What is 3 + 4?"),), "3+4=7. Answer: 7")


def test_the_loss_uses_the_ids_of_the_engine(nano: LoadedModel) -> None:
    answer = TransformersEngine.from_loaded(nano).generate([Request(EXAMPLE.messages)])[0][0]
    encoded = encode(EXAMPLE, nano.tokenizer, 256)
    assert encoded.prompt_ids == answer.prompt_ids  # type: ignore[union-attr]
    assert encoded.response_ids == answer.token_ids  # type: ignore[union-attr]


def test_only_the_response_is_labelled() -> None:
    batch = collate([Encoded((5, 6, 7), (8, 9)), Encoded((5,), (8,))], pad_id=0)
    assert batch["labels"].tolist() == [[IGNORE] * 3 + [8, 9], [IGNORE, 8, IGNORE, IGNORE, IGNORE]]
    assert batch["attention_mask"].tolist() == [[1] * 5, [1, 1, 0, 0, 0]]
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9], [5, 8, 0, 0, 0]]


def test_a_plan_takes_every_example_once_and_pads_little() -> None:
    lengths = np.random.default_rng(0).integers(10, 80, size=203).tolist()
    plan = list(plan_batches(lengths, 8, np.random.default_rng(1)))
    assert sorted(index for batch in plan for index in batch) == list(range(203))
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in plan)
    assert padded / sum(lengths) < 1.25
    assert plan != list(plan_batches(lengths, 8, np.random.default_rng(2)))


def test_an_example_beyond_the_context_is_refused_by_name(nano: LoadedModel) -> None:
    with pytest.raises(LessonError, match="at most 256"):
        encode(Example((Message("user", "long " * 300),), "x"), nano.tokenizer, 256)
