import json
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch
from small_coder import ROW, make_small_coder, train_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from palaestra.chat.encoder import ChatEncoder
from palaestra.chat.rendering import describe_tools, prompt_ids, render_conversation, to_plain
from palaestra.chat.tool_parsers import HERMES
from palaestra.core.records import Example, Message, Split, ToolCall
from palaestra.core.seeding import Seeds
from palaestra.models.registry import LoadedModel
from palaestra.students import pretraining
from palaestra.students.batches import IGNORE, Encoded, collate
from palaestra.students.pretraining import encode_conversations, list_texts, mix_corpora
from palaestra.tasks.base import make_task
from palaestra.tasks.leakage import HeldOut
from palaestra.tasks.tools.library import LIBRARY


def test_the_loss_of_a_padded_batch_is_transformers_own(nano: LoadedModel) -> None:
    """The mean over the labeled tokens of all rows, whatever fills the shorter rows."""
    batch = collate([Encoded((5, 6, 7), (8, 9)), Encoded((5,), (8,))], pad_id=0)
    with torch.no_grad():
        wanted = nano.weights(**batch).loss
        del batch["attention_mask"]
        assert float(pretraining.compute_padded_loss(nano.weights, batch)) == pytest.approx(float(wanted), rel=1e-5)


def take(count: int, seed: int = 0) -> list[Example]:
    return list(islice(mix_corpora(ROW.corpora, Seeds(seed).generator()), count))


def test_the_corpus_of_the_coder_depends_on_its_seed_alone() -> None:
    assert take(40) == take(40)
    assert take(40) != take(40, seed=1)


def test_the_corpus_repeats_no_held_out_problem() -> None:
    """No copy, no shared n-grams, no same program. Unrelated questions may share their numbers and the answer."""
    tasks = [make_task(name) for name in (*ROW.tasks, "math-skills")]
    held = {
        split: [p for task in tasks for p in task.problems(split, 4, 0)] for split in (Split.VALIDATION, Split.TEST)
    }
    leaks = [leak.how for leak in HeldOut(held).find(take(200)) if leak is not None]
    assert set(leaks) <= {"the question in other words"}
    copied = Example(held[Split.TEST][0].messages, held[Split.TEST][0].reference)
    assert HeldOut(held).find([copied])[0] is not None


def test_the_coders_tokenizer_restores_every_text() -> None:
    tokenizer = train_tokenizer()
    for text in ["def f(x):\n    return x  # \u00e9\u4e2d\n\n\n\ttabs", *(example.response for example in take(60))]:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_coders_chat_template_renders_its_corpus() -> None:
    """Training sees the text that an engine sends."""
    tokenizer = train_tokenizer()
    for example in take(200):
        conversation = [*example.messages, Message("assistant", example.response)]
        parts = list_texts(example)
        assert render_conversation(tokenizer, conversation, generation_prompt=False) == "".join(t for t, _ in parts)
        (ids, labels) = encode_conversations([example], tokenizer)[0]
        learned = "".join(text for text, is_learned in parts if is_learned)
        assert tokenizer.decode(ids[labels != IGNORE]) == learned
        prompt = prompt_ids(tokenizer, example.messages)
        assert prompt == ids[: len(prompt)].tolist()


def test_the_coders_chat_template_offers_tools_like_its_corpus() -> None:
    tokenizer, tools = train_tokenizer(), json.dumps([LIBRARY["weekday"].schema()])
    messages = [Message("system", "Be brief."), Message("user", "Which day is it?")]
    described = [Message("system", f"Be brief.\n\n{describe_tools(tools)}"), messages[1]]
    for asked, shown in (
        (messages, described),
        (messages[1:], [Message("system", describe_tools(tools)), messages[1]]),
    ):
        assert render_conversation(tokenizer, asked, tools) == render_conversation(tokenizer, shown)


def test_our_encoder_reads_the_coders_calls() -> None:
    tokenizer, tools = train_tokenizer(), json.dumps([LIBRARY["weekday"].schema()])
    encoder = ChatEncoder(tokenizer, tools=tools)
    assert encoder.tool_format is HERMES
    assert encoder.preserves_prefix
    messages = [Message("user", "Which day is it?")]
    call = Message("assistant", "Look.", (ToolCall("weekday", '{"date": "2024-05-01"}', "call00001"),))
    reply = [Message("tool", '"Wednesday"', tool_call_id="call00001")]
    opening = encoder.encode_opening(messages)
    sampled = tuple(tokenizer.encode(f"{to_plain(call).text}<|end|>", add_special_tokens=False))
    assert encoder.decode_message(sampled[:-1]) == call
    ids = (*opening, *sampled, *encoder.encode_reply(messages, call, reply, sampled[-1]))
    assert tokenizer.decode(ids) == encoder.template.render([*messages, call, *reply])


def test_batches_hold_whole_conversations_up_to_the_context() -> None:
    draw = partial(pretraining.draw_conversations, ROW.corpora, train_tokenizer(), 4096, 1024, window=64)
    first, again, apart = (
        list(islice(pretraining.load_batches(draw, Seeds(3), torch.device("cpu"), workers), 6)) for workers in (0, 0, 1)
    )
    for batch, same, other in zip(first, again, apart, strict=True):
        assert torch.equal(batch["input_ids"], same["input_ids"])
        assert torch.equal(batch["labels"], other["labels"])
        rows, length = batch["input_ids"].shape
        assert length <= 1024
        assert rows == 1 or rows * (length - 64) < 4096
        learned = batch["labels"] != IGNORE
        assert torch.equal(batch["input_ids"][learned], batch["labels"][learned])
        assert learned.any(dim=1).all()


def test_plain_transformers_reads_the_whole_context(tmp_path: Path) -> None:
    model = make_small_coder()
    model.weights.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    tokenizer, weights = AutoTokenizer.from_pretrained(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path)
    assert weights.config.max_position_embeddings == ROW.context >= 4096
    text = tokenizer.apply_chat_template([{"role": "user", "content": "word " * 6000}], tokenize=False)
    ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=4096)["input_ids"]
    assert ids.shape == (1, 4096)
    with torch.no_grad():
        assert weights(ids, logits_to_keep=1).logits.isfinite().all()
