"""The vLLM engine against vLLM itself and against the transformers engine. Runs in an environment with vLLM."""

import json
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import vision_models

from palaestra.core.errors import EngineError, ModelError
from palaestra.core.records import (
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
from palaestra.engines.base import ABORTED
from palaestra.engines.transformers import TransformersEngine
from palaestra.models import registry as models
from palaestra.tasks.math.task import MathSkills
from palaestra.tasks.vision.task import VisionSkills

pytest.importorskip("vllm")
from palaestra.engines.vllm import VLLMEngine

pytestmark = [pytest.mark.backends, pytest.mark.filterwarnings("ignore")]  # vLLM warns of its own dependencies


@pytest.fixture(scope="module")
def engine() -> Iterator[VLLMEngine]:
    engine = VLLMEngine(models.locate("nano"), "nano", max_lora_rank=8, dtype="float32", enforce_eager=True)
    yield engine
    engine.close()


def ask(engine: VLLMEngine, *requests: Request) -> list[Completion]:
    completions = [answers[0] for answers in engine.generate(requests)]
    assert all(isinstance(completion, Completion) for completion in completions), completions
    return completions  # type: ignore[return-value]


def make_requests(sampling: Sampling, count: int = 3) -> list[Request]:
    return [Request(problem.messages, sampling) for problem in MathSkills().problems(Split.TEST, count, 0)]


def test_greedy_answers_equal_the_transformers_engine(engine: VLLMEngine) -> None:
    requests = make_requests(Sampling(40))
    ours, theirs = ask(engine, *requests), ask(TransformersEngine.from_loaded(models.load("nano")), *requests)  # type: ignore[arg-type]
    assert [a.prompt_ids for a in ours] == [a.prompt_ids for a in theirs]
    same = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.token_ids == b.token_ids]
    # Kernels round differently: a tie between two tokens may fall the other way.
    assert len(same) >= 0.95 * len(requests)
    for a, b in same:
        assert (a.text, a.stop_reason, a.usage) == (b.text, b.stop_reason, b.usage)
        torch.testing.assert_close(torch.tensor(a.logprobs), torch.tensor(b.logprobs), atol=1e-3, rtol=0)


def test_requests_have_their_own_count_and_seed(engine: VLLMEngine) -> None:
    messages = (Message("user", "A farmer has 13 hens and 48 eggs. Why?"),)
    sampling = Sampling(12, temperature=2.0, count=6)
    (first,), (other,) = (
        engine.generate([Request(messages, sampling, 1)]),
        engine.generate([Request(messages, sampling, 2)]),
    )
    again = engine.generate([Request(messages, Sampling(12), 9), Request(messages, sampling, 1)])[1]
    assert len(first) == 6
    assert len({answer.token_ids for answer in first}) > 1  # type: ignore[union-attr]
    assert [a.token_ids for a in first] == [a.token_ids for a in again]  # type: ignore[union-attr]
    assert [a.token_ids for a in first] != [a.token_ids for a in other]  # type: ignore[union-attr]


def test_stop_strings_limits_and_failures_are_per_request(engine: VLLMEngine) -> None:
    question = (Message("user", "What is 3 + 4?"),)
    image = (Message("user", (TextPart("What?"), ImagePart("missing.png"))),)
    answers = engine.generate(
        [
            Request(question, Sampling(40, stop=("Answer",))),
            Request(question, Sampling(3)),
            Request((Message("user", "3 + 4 " * 400),), Sampling(40, count=2)),
            Request(image, Sampling(40)),
            Request(question, Sampling(40), schema='{"type": "no such type"}'),
            Request(question, Sampling(40, temperature=3.0)),
            Request(question, Sampling(40)),
        ]
    )
    stopped, cut, long, pictured, malformed, hot, plain = answers
    assert isinstance(stopped[0], Completion)
    assert (stopped[0].text, stopped[0].stop_reason) == ("3+4=7. ", StopReason.STOP)
    assert isinstance(cut[0], Completion)
    assert (len(cut[0].token_ids), cut[0].stop_reason) == (3, StopReason.LENGTH)
    assert [answer.cause for answer in long if isinstance(answer, Failure)] == [FailureCause.CONTEXT_LENGTH] * 2
    assert isinstance(pictured[0], Failure)
    assert pictured[0].cause is FailureCause.INVALID_REQUEST
    assert isinstance(malformed[0], Failure)
    assert malformed[0].cause is FailureCause.INVALID_REQUEST
    assert isinstance(hot[0], Failure)
    assert "temperature" in hot[0].message
    assert isinstance(plain[0], Completion)
    assert (plain[0].text, plain[0].stop_reason) == ("3+4=7. Answer: 7", StopReason.END)


def test_an_answer_follows_its_schema(engine: VLLMEngine) -> None:
    schema = json.dumps({"type": "object", "properties": {"n": {"enum": [7, 8]}}, "required": ["n"]})
    (answer,) = ask(engine, Request((Message("user", "What is 3 + 4?"),), Sampling(40), schema=schema))
    assert json.loads(answer.text)["n"] in (7, 8)


def test_adapters_are_swapped_in_a_live_engine(engine: VLLMEngine, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    requests = make_requests(Sampling(20), 1)
    base = [answer.token_ids for answer in ask(engine, *requests)]
    expected = {}
    for seed in (1, 2):
        torch.manual_seed(seed)
        loaded = models.load("nano")
        config = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        adapted = get_peft_model(loaded.weights, config)
        adapted.save_pretrained(tmp_path / "adapter")  # the same folder: only the id tells them apart
        reference = TransformersEngine(adapted, loaded.tokenizer)
        expected[seed] = [answer.text for answer in ask(reference, *requests)]  # type: ignore[arg-type]
        engine.load_adapter(tmp_path / "adapter")
        assert [answer.text for answer in ask(engine, *requests)] == expected[seed]
    assert expected[1] != expected[2]
    engine.unload_adapter()
    assert [answer.token_ids for answer in ask(engine, *requests)] == base
    with pytest.raises(ModelError, match=r"the adapter .*nothing"):
        engine.load_adapter(tmp_path / "nothing")


def test_new_weights_drop_cached_prefixes(engine: VLLMEngine) -> None:
    requests = make_requests(Sampling(20), 1)
    base = ask(engine, *requests)
    loaded = models.load("nano")
    original = {name: tensor.clone() for name, tensor in loaded.weights.state_dict().items()}
    with torch.no_grad():
        for parameter in loaded.weights.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    expected = ask(TransformersEngine.from_loaded(loaded), *requests)  # type: ignore[arg-type]
    engine.update_weights(loaded.weights.state_dict().items())
    changed = ask(engine, *requests)
    assert [answer.text for answer in changed] == [answer.text for answer in expected]
    assert [answer.text for answer in changed] != [answer.text for answer in base]
    alive: set[str] = set()
    peak = 0

    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal peak
        for name, tensor in original.items():
            copy = tensor.clone()
            alive.add(name)
            weakref.finalize(copy, alive.discard, name)
            peak = max(peak, len(alive))
            yield name, copy

    engine.update_weights(stream())
    assert peak < len(original) / 2, "vLLM holds the tensors of one layer at a time"
    assert [answer.token_ids for answer in ask(engine, *requests)] == [answer.token_ids for answer in base]


def test_global_rng_is_unchanged_and_no_process_is_left() -> None:
    psutil = pytest.importorskip("psutil")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    engine = VLLMEngine(models.locate("nano"), dtype="float32", enforce_eager=True)
    assert torch.equal(torch.rand(3), expected)
    with pytest.raises(ModelError, match="max_lora_rank"):
        engine.load_adapter(Path("anywhere"))
    engine.close()
    engine.close()
    assert psutil.Process().children(recursive=True) == []
    with pytest.raises(EngineError, match="closed"):
        engine.generate([])


def test_images_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With SmolVLM's architecture and random weights: vLLM's Llava, nano-vlm's, needs torchvision."""
    monkeypatch.setitem(vision_models.TEXT, "hidden_size", 128)  # vLLM's CPU kernels need heads of 32 or more.
    model = vision_models.build_model(vision_models.idefics3, models.load("nano").tokenizer)
    model.weights.save_pretrained(tmp_path)
    model.processor.save_pretrained(tmp_path)
    requests = [Request(problem.messages, Sampling(6)) for problem in VisionSkills().problems(Split.TEST, 1, 0)]
    expected = ask(TransformersEngine.from_loaded(models.load(str(tmp_path), device="cpu")), *requests)  # type: ignore[arg-type]
    engine = VLLMEngine(str(tmp_path), dtype="float32", enforce_eager=True)
    answers = ask(engine, *requests)
    engine.close()
    assert len({answer.token_ids for answer in answers}) > 5
    for a, b in zip(answers, expected, strict=True):
        assert (a.prompt_ids, a.token_ids) == (b.prompt_ids, b.token_ids)
        torch.testing.assert_close(torch.tensor(a.logprobs), torch.tensor(b.logprobs), atol=1e-3, rtol=0)


def test_a_model_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="vLLM cannot load"):
        VLLMEngine(str(tmp_path))


def test_a_batch_that_fails_half_way_leaves_a_working_engine() -> None:
    requests = [
        Request(problem.messages, Sampling(8, temperature=1.0), seed)
        for seed, problem in enumerate(MathSkills().problems(Split.TEST, 15, 0))
    ]
    # vLLM's CPU build cannot sample with a seed from a prompt that it reads in parts.
    engine = VLLMEngine(models.locate("nano"), dtype="float32", enforce_eager=True, enable_chunked_prefill=True)
    answers = engine.generate(requests)
    assert {answer.cause for (answer,) in answers if isinstance(answer, Failure)} == {FailureCause.ENGINE}
    assert len(ask(engine, *requests[:3])) == 3
    engine.close()
    whole = VLLMEngine(models.locate("nano"), dtype="float32", enforce_eager=True)
    assert len(ask(whole, *requests)) == len(requests) > 256
    whole.close()


def test_too_little_memory_is_one_line_that_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4000")
    with pytest.raises(ModelError, match=r"4000.* GiB.*VLLM_CPU_KVCACHE_SPACE") as raised:
        VLLMEngine(models.locate("nano"), dtype="float32", enforce_eager=True)
    assert "\n" not in str(raised.value)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "")
    with pytest.raises(ModelError, match="`--gpu-memory-utilization`") as raised:
        VLLMEngine(models.locate("nano"), dtype="float32", enforce_eager=True, gpu_memory_utilization=0.999)
    assert "\n" not in str(raised.value)


def test_requests_join_and_leave_the_running_batch(engine: VLLMEngine) -> None:
    messages = (Message("user", "What is 13 + 48?"),)
    long, short = Request(messages, Sampling(200, 1.0, count=2), 1), Request(messages, Sampling(40))
    offers, tokens, answers = [[long], [short], []], {}, {}

    def on_token(slot: tuple[int, int], position: int, token: int) -> None:
        tokens.setdefault(slot, []).append(token)

    engine.generate_joining(
        lambda room: offers.pop(0) if offers else [],
        on_token,
        answers.__setitem__,
        lambda index: index == 0 and len(tokens.get((0, 0), ())) >= 3,
    )
    assert [answers[0, k] for k in range(2)] == [ABORTED, ABORTED]
    assert len(tokens[0, 0]) < 10
    (alone,) = ask(engine, short)
    assert answers[1, 0].token_ids == alone.token_ids == tuple(tokens[1, 0])
    assert not engine._llm.llm_engine.has_unfinished_requests()
