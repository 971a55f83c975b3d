import numpy as np
import pytest
import torch

from palaestra.core.errors import LessonError
from palaestra.core.records import Example, Message, Request
from palaestra.core.seeding import plan_batches
from palaestra.engines.transformers import TransformersEngine
from palaestra.models.registry import LoadedModel
from palaestra.students.batches import IGNORE, Encoded, collate, encode, response_loss

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


def test_the_loss_is_the_mean_over_response_tokens() -> None:
    """Against a plain NumPy computation."""
    generator = torch.Generator().manual_seed(0)
    logits_BTV = torch.randn(2, 5, 11, generator=generator)
    labels_BT = collate([Encoded((5, 6, 7), (8, 9)), Encoded((5,), (8,))], pad_id=0)["labels"]
    array, total, count = logits_BTV.double().numpy(), 0.0, 0
    for b in range(2):
        for t in range(1, 5):
            if labels_BT[b, t] != IGNORE:
                row = array[b, t - 1]
                total += float(np.log(np.exp(row).sum()) - row[int(labels_BT[b, t])])
                count += 1
    assert float(response_loss(logits_BTV, labels_BT)) == pytest.approx(total / count, abs=1e-5)


def test_padding_changes_no_loss(nano: LoadedModel) -> None:
    rows = [
        encode(Example((Message("user", q),), "Answer: 7"), nano.tokenizer, 256)
        for q in ("What is 3 + 4?", "Add up 1, 2, 3, 1.")
    ]
    with torch.inference_mode():
        each = []
        for row in rows:
            batch = collate([row], 0)
            logits = nano.weights(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            each.append(float(response_loss(logits, batch["labels"])))
        both = collate(rows, 0)
        logits = nano.weights(input_ids=both["input_ids"], attention_mask=both["attention_mask"]).logits
    assert float(response_loss(logits, both["labels"])) == pytest.approx(sum(each) / 2, abs=1e-5)


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
