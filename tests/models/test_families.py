"""The engine agrees with the own forward pass of every model family. Unsupported models are rejected before loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import RARE, SEQUENCES, SLOTS, VOCABULARY, tiny_model

from palaestra.core.errors import ModelError
from palaestra.core.records import Completion, Failure, FailureCause, Message, Request, Sampling, StopReason
from palaestra.engines.transformers import TransformersEngine
from palaestra.kernels.sequences import SequenceStepper
from palaestra.models import registry as models
from palaestra.models.families import PADDED, context_length, sliding_window

COMMON = [
    "gptj",
    "opt",
    "falcon",
    "llama",
    "mistral, sliding",
    "mixtral, sliding",
    "qwen2, sliding",
    "gemma2",
    "phi3, sliding",
]


class Letters:
    """A tokenizer with an id a letter."""

    pad_token_id, eos_token_id, chat_template = 0, None, None

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % VOCABULARY for letter in text]

    def decode(self, ids: list[int], **_: Any) -> str:
        return " ".join(map(str, ids))


def make_engine(model: Any) -> TransformersEngine:
    engine = TransformersEngine(model, Letters(), "tiny")  # type: ignore[arg-type]
    engine.end_ids = set()
    return engine


def request(length: int, max_tokens: int, temperature: float = 0.0) -> Request:
    text = "".join(chr(97 + (5 * k + length) % 26) for k in range(length - 1))
    return Request((Message("user", text),), Sampling(max_tokens, temperature), seed=length)


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[pytest.mark.backends] if name in RARE else []) for name in [*COMMON, *SEQUENCES]],
)
def test_answers_in_company_are_those_of_the_models_own_forward(family: str) -> None:
    model = tiny_model(family)
    requests = [request(3, 4), request(12, 16), request(2, 9), request(20, 12), request(9, 14, temperature=1.0)]
    answers = make_engine(model).generate(requests)
    for (answer,), asked in zip(answers, requests, strict=True):
        assert isinstance(answer, Completion), answer
        assert answer.prompt_ids is not None
        assert answer.logprobs is not None
        assert answer.token_ids is not None
        ids = [*answer.prompt_ids, *answer.token_ids]
        with torch.no_grad():
            logp_TV = model(input_ids=torch.tensor([ids])).logits[0, len(answer.prompt_ids) - 1 : -1].log_softmax(-1)
        chosen_T = torch.tensor(answer.token_ids)
        assert len(chosen_T) == asked.sampling.max_tokens
        torch.testing.assert_close(
            torch.tensor(answer.logprobs), logp_TV.gather(-1, chosen_T[:, None])[:, 0], atol=2e-4, rtol=1e-4
        )
        if not asked.sampling.temperature:
            assert chosen_T.tolist() == logp_TV.argmax(-1).tolist()


def test_every_type_that_takes_padding_is_tested() -> None:
    import transformers

    types = {getattr(transformers, f"{prefix}Config").model_type for prefix, _ in {**SLOTS, **SEQUENCES}.values()}
    assert types >= PADDED


def test_longrope_answers_stay_within_the_original_context() -> None:
    import transformers

    rope = {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 3, "long_factor": [4.0] * 3,
        "original_max_position_embeddings": 16,
    }  # fmt: skip
    arguments = {**SLOTS["phi3"][1], "rope_parameters": rope, "original_max_position_embeddings": 16}
    model = transformers.Phi3ForCausalLM(transformers.Phi3Config(**arguments)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    # The row that finishes first stays in the batch of the others, at the end of the original context.
    requests = [request(10, 20), request(20, 20), request(16, 20), request(15, 1), *(request(n, 12) for n in (2, 3, 4))]
    (short,), (long,), (full,), *more = make_engine(model).generate(requests)
    assert isinstance(short, Completion)
    assert isinstance(long, Completion)
    assert short.stop_reason is StopReason.LENGTH
    assert [len(short.token_ids or ()), len(long.token_ids or ())] == [6, 20]
    assert isinstance(full, Failure)
    assert full.cause is FailureCause.CONTEXT_LENGTH
    for answer in (short, long, *(answer for (answer,) in more)):
        assert isinstance(answer, Completion)
        ids = [*(answer.prompt_ids or ()), *(answer.token_ids or ())]
        with torch.no_grad():
            logp_TV = (
                model(input_ids=torch.tensor([ids])).logits[0, len(answer.prompt_ids or ()) - 1 : -1].log_softmax(-1)
            )
        best_T, chosen_T = logp_TV.max(-1)
        assert chosen_T.tolist() == list(answer.token_ids or ())
        torch.testing.assert_close(torch.tensor(answer.logprobs), best_T, atol=1e-4, rtol=0.0)


def test_vllm_rotation_matches_learner_or_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from palaestra.engines.vllm import VLLMEngine

    opened: list[Any] = []
    monkeypatch.setattr(VLLMEngine, "__init__", lambda self, model, name, **options: opened.append(options))
    for family in ("llama", "llama, longrope", "llama, dynamic", "gemma3_text, dynamic by layer"):
        tiny_model(family).config.save_pretrained(tmp_path / family)
    for family in ("llama", "llama, longrope"):
        VLLMEngine.open_for_rollouts(f"vllm:{tmp_path / family}")
    assert [options.get("max_model_len") for options in opened] == [None, 32]
    for family in ("llama, dynamic", "gemma3_text, dynamic by layer"):
        with pytest.raises(ModelError, match="dynamic NTK"):
            VLLMEngine.open_for_rollouts(f"vllm:{tmp_path / family}")


REFUSED = {
    "T5Config": r"\(t5\) is an encoder-decoder",
    "BartConfig": r"\(bart\) is an encoder-decoder",
    "WhisperConfig": r"\(whisper\) is an encoder-decoder",
    "BertConfig": r"\(bert\) is bidirectional",
    "RobertaConfig": r"\(roberta\) is bidirectional",
    "XLNetConfig": r"\(xlnet\) is bidirectional",
    "XLMConfig": r"\(xlm\) is bidirectional",
}


@pytest.mark.parametrize("config", REFUSED)
def test_configurations_of_non_causal_models_are_rejected(config: str, tmp_path: Path) -> None:
    """The folder holds no weights: nothing can have been loaded."""
    import transformers

    getattr(transformers, config)().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=REFUSED[config]) as raised:
        models.load(str(tmp_path))
    assert "\n" not in str(raised.value)


def test_a_limit_below_one_is_no_limit() -> None:
    import transformers

    assert context_length(transformers.LlamaConfig(max_position_embeddings=-1)) == 0


def test_train_rejects_untrainable_models_before_loading(tmp_path: Path) -> None:
    import transformers

    from palaestra import train

    transformers.RwkvConfig(vocab_size=VOCABULARY, hidden_size=24, num_hidden_layers=2).save_pretrained(
        tmp_path / "rwkv"
    )
    with pytest.raises(ModelError, match=r"\(rwkv\) .*weights in place"):
        train(env="CoTEnv-v0", model=str(tmp_path / "rwkv"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_stepper_rejects_a_model_that_is_not_causal() -> None:
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4
    )
    model = transformers.BertLMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5.0)
    with pytest.raises(ModelError, match=r"\(bert\) is not causal"):
        SequenceStepper(model, 1)


def test_a_step_in_which_every_slot_rests_or_waits_gives_zeros() -> None:
    stepper = SequenceStepper(tiny_model("bloom"), 2)
    tokens_S = torch.tensor([3, 4])
    assert stepper.step(tokens_S).shape == (2, VOCABULARY)
    stepper.start({1: [5, 6]})
    assert not stepper.step(tokens_S, waiting=[1]).any()
    assert stepper.step(tokens_S)[1].any()


@pytest.mark.parametrize(
    ("changes", "context", "window"),
    [
        ({}, 64, 0),
        ({"sliding_window": 8}, 64, 8),
        ({"sliding_window": 64}, 64, 0),
        ({"max_position_embeddings": 32, "sliding_window": 40}, 32, 0),
    ],
)
def test_limits_come_from_the_configuration(changes: dict[str, Any], context: int, window: int) -> None:
    import transformers

    config = transformers.MistralConfig(**{**SLOTS["mistral"][1], **changes})
    assert (context_length(config), sliding_window(config)) == (context, window)
    assert context_length(transformers.MptConfig(max_seq_len=48)) == 48
    assert context_length(transformers.BloomConfig()) == 0
