import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from palaestra.chat.rendering import prompt_ids
from palaestra.core.records import (
    Answer,
    Completion,
    Failure,
    FailureCause,
    ImagePart,
    Message,
    Request,
    Sampling,
    Split,
    StopReason,
    TextPart,
)
from palaestra.engines.transformers import TransformersEngine
from palaestra.kernels.operations import filter_logits
from palaestra.models.registry import LoadedModel
from palaestra.tasks.math.task import MathSkills

PROBLEMS = MathSkills().problems(Split.TEST, 28, 0)[:500]
GREEDY, SAMPLED = Sampling(max_tokens=16), Sampling(max_tokens=16, temperature=1.0, top_p=0.95)


def ask(text: str, **sampling: object) -> Request:
    return Request((Message("user", text),), Sampling(**sampling), seed=1)  # type: ignore[arg-type]


def first(engine: TransformersEngine, request: Request) -> Completion:
    answer = engine.generate([request])[0][0]
    assert isinstance(answer, Completion)
    return answer


def test_the_same_request_gives_the_same_tokens_in_any_company(nano: LoadedModel) -> None:
    """Greedy and sampled, 60 problems each, at batch sizes 7 and 64, and a fifth of them alone."""
    requests = [
        Request(p.messages, sampling, seed=k)
        for k, p in enumerate(PROBLEMS[::8][:60])
        for sampling in (GREEDY, SAMPLED)
    ]
    assert len(requests) == 120
    ids = {}
    threads = torch.get_num_threads()
    for batch_size in (64, 7, 1):
        torch.set_num_threads(threads if batch_size > 1 else 1)  # Alone, a row is faster on one thread.
        answers = TransformersEngine.from_loaded(nano, batch_size).generate(
            requests if batch_size > 1 else requests[:24]
        )
        torch.set_num_threads(threads)
        ids[batch_size] = [a[0].token_ids for a in answers]  # type: ignore[union-attr]
    assert ids[7] == ids[64]
    assert ids[1] == ids[64][:24]
    greedy, sampled = ids[64][0::2], ids[64][1::2]
    assert greedy != sampled


def test_greedy_tokens_are_those_of_transformers_own_generate(nano: LoadedModel) -> None:
    engine = TransformersEngine.from_loaded(nano, 16)
    for problem in PROBLEMS[::50]:
        ids = prompt_ids(nano.tokenizer, problem.messages)
        theirs = nano.weights.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=16,
            do_sample=False,
        )
        assert first(engine, Request(problem.messages, GREEDY)).token_ids == tuple(theirs[0, len(ids) :].tolist())


def test_logprobs_are_those_of_one_full_forward_pass(nano: LoadedModel) -> None:
    answers = TransformersEngine.from_loaded(nano, 64).generate(
        [Request(p.messages, SAMPLED, seed=3) for p in PROBLEMS[::20]]
    )
    for (answer,) in answers:
        assert isinstance(answer, Completion)
        ids = torch.tensor([answer.prompt_ids + answer.token_ids])
        with torch.inference_mode():
            logprobs_TV = nano.weights(ids).logits[0].log_softmax(-1)
        start = len(answer.prompt_ids)
        expected = [float(logprobs_TV[start + k - 1, token]) for k, token in enumerate(answer.token_ids)]
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


def test_the_end_of_turn_is_among_the_ids_and_not_in_the_text(nano: LoadedModel) -> None:
    answer = first(TransformersEngine.from_loaded(nano), ask("What is 3 + 4?"))
    assert answer.stop_reason is StopReason.END
    assert answer.token_ids[-1] == nano.tokenizer.eos_token_id
    assert answer.text == "3+4=7. Answer: 7"
    assert answer.usage.completion_tokens == len(answer.token_ids)
    assert answer.usage.prompt_tokens == len(answer.prompt_ids)


def test_the_token_limit_and_stop_strings_end_a_completion(nano: LoadedModel) -> None:
    cut = first(TransformersEngine.from_loaded(nano), ask("What is 3 + 4?", max_tokens=3))
    assert (cut.stop_reason, len(cut.token_ids)) == (StopReason.LENGTH, 3)
    stopped = first(TransformersEngine.from_loaded(nano), ask("What is 3 + 4?", stop=("Answer",)))
    assert (stopped.stop_reason, stopped.text) == (StopReason.STOP, "3+4=7. ")


def test_completions_differ_and_repeat_with_the_seed(nano: LoadedModel) -> None:
    request = ask("Write 322 in binary.", count=6, temperature=1.5, max_tokens=16)
    once, second = (
        TransformersEngine.from_loaded(nano).generate([request])[0],
        TransformersEngine.from_loaded(nano, 2).generate([request])[0],
    )
    assert [a.token_ids for a in once] == [a.token_ids for a in second]  # type: ignore[union-attr]
    assert len({a.token_ids for a in once}) > 1  # type: ignore[union-attr]
    other = TransformersEngine.from_loaded(nano).generate([Request(request.messages, request.sampling, seed=2)])[0]
    assert [a.token_ids for a in once] != [a.token_ids for a in other]  # type: ignore[union-attr]


def test_sampling_follows_the_models_distribution(nano: LoadedModel) -> None:
    """The first token over many seeds against the softmax, by a chi-square bound."""
    request = ask("Write 322 in binary.", count=2000, temperature=2.0, max_tokens=1)
    answers = TransformersEngine.from_loaded(nano, 512).generate([request])[0]
    prompt = torch.tensor([answers[0].prompt_ids])  # type: ignore[union-attr]
    with torch.inference_mode():
        probabilities = (nano.weights(prompt).logits[0, -1] / 2.0).softmax(-1)
    top = probabilities.topk(5)
    for probability, token in zip(top.values.tolist(), top.indices.tolist(), strict=True):
        count = sum(a.token_ids[0] == token for a in answers)  # type: ignore[union-attr]
        spread = math.sqrt(2000 * probability * (1 - probability))
        assert abs(count - 2000 * probability) < 4.5 * spread + 1


def test_a_prompt_longer_than_the_context_fails_alone(nano: LoadedModel) -> None:
    answers = TransformersEngine.from_loaded(nano).generate(
        [ask("What is 3 + 4?"), ask("what " * 400), ask("What is 5 + 4?")]
    )
    assert isinstance(answers[1][0], Failure)
    assert answers[1][0].cause is FailureCause.CONTEXT_LENGTH
    assert "256" in answers[1][0].message
    assert [a[0].text for a in (answers[0], answers[2])] == ["3+4=7. Answer: 7", "5+4=9. Answer: 9"]  # type: ignore[union-attr]


def test_an_image_for_a_text_model_fails_alone(nano: LoadedModel) -> None:
    picture = Request((Message("user", (TextPart("what is it?"), ImagePart("data:,"))),))
    answers = TransformersEngine.from_loaded(nano).generate([picture, ask("What is 3 + 4?")])
    assert isinstance(answers[0][0], Failure)
    assert answers[0][0].cause is FailureCause.INVALID_REQUEST
    assert isinstance(answers[1][0], Completion)


def test_failed_batch_is_halved_until_one_row_fails(nano: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TransformersEngine.from_loaded(nano)
    bad = tuple(prompt_ids(nano.tokenizer, (Message("user", "What is 6 + 6?"),)))
    decode = engine._decode_slots

    def fail_on_bad_prompt(rows: list, take: None) -> None:  # type: ignore[type-arg]
        if any(tuple(row.prompt) == bad for row in rows):
            raise RuntimeError("out of memory")
        decode(rows, take)

    monkeypatch.setattr(engine, "_decode_slots", fail_on_bad_prompt)
    answers = engine.generate([ask(f"What is {k} + 6?") for k in (5, 6, 7, 8, 9)])
    assert [isinstance(a[0], Failure) for a in answers] == [False, True, False, False, False]
    assert answers[4][0].text.endswith("Answer: 15")  # type: ignore[union-attr]


def test_requests_join_a_running_batch(nano: LoadedModel) -> None:
    engine = TransformersEngine.from_loaded(nano, batch_size=4)
    requests = [Request(p.messages, SAMPLED, seed=k) for k, p in enumerate(PROBLEMS[:12])]
    requests.insert(0, replace(requests[0], sampling=replace(SAMPLED, count=3)))
    requests.insert(5, Request((Message("user", (ImagePart("data:,"),)),)))
    alone = [engine.generate([request])[0] for request in requests]
    offers, order = [requests[:1], [], requests[1:3], requests[3:9], [], requests[9:]], list[tuple[int, int]]()
    answers: dict[tuple[int, int], Answer] = {}
    tokens: dict[tuple[int, int], list[int]] = {}

    def take(room: int) -> list[Request]:
        assert 0 < room <= 4
        return offers.pop(0) if offers else []

    def on_answer(slot: tuple[int, int], answer: Answer) -> None:
        order.append(slot)
        answers[slot] = answer

    engine.generate_joining(take, lambda slot, _, token: tokens.setdefault(slot, []).append(token), on_answer)
    assert not offers
    assert sorted(answers) == [(index, k) for index, several in enumerate(alone) for k in range(len(several))]
    assert order != sorted(order), "short answers do not wait for long ones"
    for (index, k), answer in answers.items():
        expected = alone[index][k]
        if isinstance(answer, Completion) and isinstance(expected, Completion):
            assert answer.token_ids == expected.token_ids == tuple(tokens[index, k])
            assert np.allclose(answer.logprobs, expected.logprobs, atol=1e-4)
        else:
            assert answer == expected


def test_training_mode_and_global_generator_are_unchanged(nano: LoadedModel) -> None:
    nano.weights.train()
    before = torch.random.get_rng_state()
    TransformersEngine.from_loaded(nano).generate([ask("What is 3 + 4?", temperature=1.0)])
    assert nano.weights.training
    assert torch.equal(before, torch.random.get_rng_state())
    nano.weights.eval()


def test_filters_keep_the_most_likely_tokens() -> None:
    logits_BV = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]] * 3))
    kept = filter_logits(logits_BV, torch.tensor([[0.6], [1.0], [0.01]]), torch.tensor([[0], [3], [0]])).isfinite()
    assert kept.tolist() == [[True, True, False, False], [True, True, True, False], [True, False, False, False]]
