import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.core.errors import LessonError, ModelError
from palaestra.core.records import Message
from palaestra.core.seeding import Seeds
from palaestra.rewards.data import ResponseComparison, RewardReport, report_on_scores
from palaestra.rewards.model import (
    RewardModel,
    RewardTraining,
    _is_out_of_patience,
    _schedule,
    best_of_k_loss,
    load_reward_model,
    make_reward_model,
    train_reward_model,
)
from palaestra.students.supervised import TrainingState

TEXTS = ["a good film", "bad", "a film that is very very good and a little long", "", "a bad film <|end|>"]


def make_tokenizer(pad: bool) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    text = "<|pad|> <|end|> ? a good bad film that is very and little long 1 2 3 4 5 6 7 8 9"
    raw = Tokenizer(models.WordLevel({word: index for index, word in enumerate(text.split())}, unk_token="?"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    extra = {"pad_token": "<|pad|>"} if pad else {}
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>", unk_token="?", **extra)


def make_tiny_model(kind: str, pad: bool = True, context: int = 32, dropout: float = 0.0) -> RewardModel:
    """Make a model with random weights. Without `pad`, the end token serves as padding."""
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        GPT2Config,
        GPT2ForSequenceClassification,
        LlamaConfig,
        LlamaForSequenceClassification,
    )

    tokenizer = make_tokenizer(pad)
    shared = {"vocab_size": len(tokenizer), "num_labels": 1, "bos_token_id": None, "eos_token_id": 1}
    shared["initializer_range"] = 0.2  # Scores that differ by far more than the tolerances.
    torch.manual_seed(0)
    if kind == "gpt2":
        drop = {"embd_pdrop": dropout, "resid_pdrop": dropout, "attn_pdrop": dropout}
        config = GPT2Config(n_positions=context, n_embd=16, n_layer=2, n_head=2, **drop, **shared)
        return RewardModel(GPT2ForSequenceClassification(config), tokenizer)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    if kind == "bert":
        config = BertConfig(**sizes, max_position_embeddings=context, **shared)
        return RewardModel(BertForSequenceClassification(config), tokenizer)
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 4, "factor": context / 4,
            "short_factor": [1.0] * 4, "long_factor": [9.0] * 4}  # fmt: skip
    config = LlamaConfig(**sizes, max_position_embeddings=context, **shared)
    if kind == "longrope":
        config.rope_parameters = rope
    return RewardModel(LlamaForSequenceClassification(config), tokenizer)


@pytest.fixture(autouse=True)
def _own_generator() -> Any:
    with torch.random.fork_rng():
        yield


def have_equal_weights(left: Any, two: Any) -> bool:
    pairs = zip(left.weights.state_dict().values(), two.weights.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


# Scores


@pytest.mark.parametrize("pad", [True, False], ids=["own padding", "padding is end"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "longrope", "bert"])
def test_a_score_does_not_depend_on_the_batch(kind: str, pad: bool) -> None:
    model = make_tiny_model(kind, pad)
    together = model.score(TEXTS)
    alone = [model.score([text])[0] for text in TEXTS]
    assert together == pytest.approx(alone, abs=1e-5)
    assert together == pytest.approx(model.score(TEXTS, batch_size=2), abs=1e-5)
    assert len({round(score, 3) for score in together}) == len(TEXTS)


@pytest.mark.parametrize("pad", [True, False])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_ids_that_end_with_the_end_token_score_as_their_text(kind: str, pad: bool) -> None:
    model = make_tiny_model(kind, pad)
    ids = model.encode(["a good film"])[0]
    rows = [[*ids, 1], ids, [*ids, *ids, *ids, 1]]
    scores = model.score_ids(rows)
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    assert scores[1] == pytest.approx(model.score(["a good film"])[0], abs=1e-5)
    assert scores == pytest.approx([model.score_ids([row])[0] for row in rows], abs=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_scores_equal_those_of_transformers(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = make_tiny_model(kind, pad=False)
    model.save(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    weights = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    texts = [text for text in TEXTS if text]
    with torch.no_grad():
        theirs = weights(**tokenizer(texts, padding=True, return_tensors="pt")).logits[:, 0].tolist()
    assert theirs == pytest.approx(model.score(texts), abs=1e-5)
    assert theirs == pytest.approx(load_reward_model(tmp_path, device="cpu").score(texts), abs=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_a_long_text_keeps_its_end(kind: str) -> None:
    model = make_tiny_model(kind, context=8)
    assert model.max_length == 8
    text = "1 2 3 4 5 6 7 8 9 " * 3
    assert model.score([text])[0] == pytest.approx(model.score(["2 3 4 5 6 7 8 9"])[0], abs=1e-5)
    ids = model.encode([text])[0]
    assert model.score_ids([[5] * 100 + ids])[0] == pytest.approx(model.score([text])[0], abs=1e-5)


def test_the_head_of_an_encoder_survives_the_cut() -> None:
    model = make_tiny_model("bert", context=8)
    model.tokenizer.cls_token = "?"
    assert model._fit([2, *range(3, 20)]) == [2, *range(13, 20)]


def test_ids_of_another_tokenizer_are_refused() -> None:
    with pytest.raises(ModelError, match="0 to 21; got 99"):
        make_tiny_model("gpt2").score_ids([[1, 99]])


def test_a_chat_template_renders_and_ends_at_end_of_turn() -> None:
    model = make_tiny_model("gpt2")
    assert model.render("a ", "film") == "a film"
    assert model.render((Message("user", "a"), Message("assistant", "good")), "film") == "a\ngood\nfilm"
    assert model.render("", "film") == "film"
    model.tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }} <|end|>\n{% endfor %}"
    assert model.render("a", "film") == "user: a <|end|>\nassistant: film <|end|>"
    assert model.render("", "film") == "film"


def test_nano_renders_the_ids_that_its_policy_samples(nano: Any) -> None:
    from palaestra.chat.rendering import prompt_ids

    model = make_reward_model("nano", Seeds(0), device="cpu")
    sampled = [*nano.tokenizer.encode("4", add_special_tokens=False), nano.tokenizer.eos_token_id]
    ids = prompt_ids(nano.tokenizer, [Message("user", "What is 2 + 2?")]) + sampled
    assert model.encode([model.render("What is 2 + 2?", "4")])[0] == ids


def test_the_tokenizer_of_the_caller_is_left_as_it_was() -> None:
    tokenizer = make_tokenizer(pad=False)
    tokenizer.padding_side = "left"
    model = RewardModel(make_tiny_model("gpt2").weights, tokenizer)
    assert (tokenizer.padding_side, tokenizer.pad_token) == ("left", None)
    assert (model.tokenizer.padding_side, model.tokenizer.pad_token) == ("right", "<|end|>")


# Loading


def test_the_head_comes_from_the_seed_and_nothing_else_changes() -> None:
    before = torch.random.get_rng_state()
    left, two, other = (make_reward_model("nano", Seeds(seed), device="cpu") for seed in (0, 0, 1))
    assert have_equal_weights(left, two)
    assert not torch.equal(left.weights.score.weight, other.weights.score.weight)
    assert torch.equal(before, torch.random.get_rng_state())


def test_what_is_no_reward_model_is_refused_in_one_line(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    with pytest.raises(ModelError, match=r"nano .*one label; LlamaForCausalLM has 2"):
        load_reward_model("nano")
    model = make_tiny_model("llama")
    model.weights.save_pretrained(tmp_path / "bare")
    with pytest.raises(ModelError, match="load the model") as caught:
        load_reward_model(tmp_path / "bare")
    assert "\n" not in str(caught.value)
    config = LlamaConfig(**(model.weights.config.to_dict() | {"num_labels": 1}))
    LlamaForCausalLM(config).save_pretrained(tmp_path / "causal")
    model.tokenizer.save_pretrained(tmp_path / "causal")
    with pytest.raises(ModelError, match=r"score\.weight"):
        load_reward_model(tmp_path / "causal")
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_reward_model(tmp_path)


# The loss and the report


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("centre", [0.0, 0.1])
def test_the_loss_is_the_reference(count: int, centre: float) -> None:
    generator = np.random.default_rng(0)
    scores, best = generator.normal(size=(6, count)), generator.integers(count, size=6)
    softmax = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    expected = -np.log(softmax[np.arange(6), best]).mean() + centre * (scores.sum(1) ** 2).mean()
    assert float(best_of_k_loss(torch.tensor(scores), torch.tensor(best), centre)) == pytest.approx(expected)
    if count == 2 and not centre:
        margin = scores[np.arange(6), best] - scores[np.arange(6), 1 - best]
        assert expected == pytest.approx(np.log1p(np.exp(-margin)).mean())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("centre", [None, 0.2])
def test_on_pairs_the_loss_is_that_of_trl(centre: float | None) -> None:
    trl = pytest.importorskip("trl")
    from collections import defaultdict

    scores_B2 = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    alone = SimpleNamespace(gather=lambda x: x, gather_for_metrics=lambda x: x)
    self = SimpleNamespace(
        model=SimpleNamespace(training=False),
        args=SimpleNamespace(center_rewards_coefficient=centre),
        accelerator=alone,
        _total_train_tokens=0,
        _metrics={"eval": defaultdict(list)},
    )
    logits = torch.cat([scores_B2[:, 0], scores_B2[:, 1]])[:, None]
    theirs = trl.RewardTrainer.compute_loss(self, lambda **_: SimpleNamespace(logits=logits), {})
    ours = best_of_k_loss(scores_B2, torch.zeros(5, dtype=torch.long), centre or 0.0)
    assert float(ours) == pytest.approx(float(theirs), rel=1e-6)


def test_comparisons_with_fewer_responses_share_a_batch() -> None:
    scores = torch.tensor([[1.0, 0.0, 2.0], [0.5, -0.5, -math.inf]], requires_grad=True)
    loss = best_of_k_loss(scores, torch.tensor([2, 0]), centre=0.1)
    parts = [best_of_k_loss(scores[:1], torch.tensor([2]), 0.1), best_of_k_loss(scores[1:, :2], torch.tensor([0]), 0.1)]
    assert loss.item() == pytest.approx((parts[0].item() + parts[1].item()) / 2)
    loss.backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()


def test_the_report_counts_ranks_and_ties() -> None:
    report = report_on_scores([[3, 2, 1, 0], [3, 2, 1, 0], [1, 1, 0, 0]], [0, 2, 0])
    assert (report.correct, report.count) == (1, 3)
    assert report.low < report.accuracy == 1 / 3 < report.high
    assert report.mean_reciprocal_rank == pytest.approx((1 + 1 / 3 + 1 / 2) / 3)
    assert report_on_scores([[0, 0]] * 4, [0] * 4).ranking_loss == pytest.approx(math.log(2))
    assert report_on_scores([[0, 0]] * 4, [0] * 4).brier == pytest.approx(0.25)


def test_calibration_sees_confidence_that_is_not_earned() -> None:
    generator = np.random.default_rng(0)
    logit = generator.normal(scale=2.0, size=4000)
    best = (generator.random(4000) > 1 / (1 + np.exp(-logit))).astype(int).tolist()
    honest, loud = (report_on_scores([[k * value, 0.0] for value in logit], best) for k in (1, 4))
    assert honest.calibration_error < 0.03
    assert loud.calibration_error > 0.1
    assert loud.brier > honest.brier
    assert loud.accuracy == honest.accuracy
    assert len(honest.reliability) == 10
    assert sum(entry.count for entry in honest.reliability) == 4000
    for entry in honest.reliability:
        assert entry.low <= entry.confidence <= entry.high
        assert abs(entry.confidence - entry.accuracy) < 0.12


def test_a_score_that_is_no_number_is_not_counted_as_right() -> None:
    with pytest.raises(ModelError, match="score nan"):
        report_on_scores([[float("nan"), 0.0]], [0])


# Training


def make_comparisons(count: int, responses: int = 2) -> list[ResponseComparison]:
    """Make comparisons in which the response with the word good is the best one, at any position."""
    generator = np.random.default_rng(0)
    data = []
    for _ in range(count):
        words = [" ".join(generator.choice(list("123456789"), generator.integers(1, 6))) for _ in range(responses)]
        best = int(generator.integers(responses))
        texts = tuple(f"{w} {'good' if k == best else 'bad'} {w[0]}" for k, w in enumerate(words))
        data.append(ResponseComparison("a film is ", texts, best))
    return data


FAST = RewardTraining(epochs=3, batch_size=16, learning_rate=1e-2, patience=2)


@pytest.mark.parametrize(("kind", "responses"), [("gpt2", 2), ("llama", 4)])
def test_a_rule_is_learned_from_pairs_and_from_best_of_four(kind: str, responses: int) -> None:
    model, data = make_tiny_model(kind), make_comparisons(160, responses)
    before = model.evaluate(data[128:])
    reports: list[RewardReport] = []
    history = train_reward_model(
        model, data[:96], data[96:128], FAST, Seeds(0), on_epoch=lambda epoch, report: reports.append(report)
    )
    after = model.evaluate(data[128:])
    assert before.accuracy < 0.8
    assert after.accuracy > 0.9
    assert after.ranking_loss < before.ranking_loss
    assert len(history.curve) == 6 * len(reports)
    assert min(r.ranking_loss for r in reports) == model.evaluate(data[96:128]).ranking_loss


def test_early_stopping_gives_back_the_best_weights() -> None:
    data = make_comparisons(64)
    # Validation says the opposite of training: the first epoch harms least.
    wrong = [ResponseComparison(c.prompt, c.responses, 1 - c.best) for c in data[48:]]
    model = make_tiny_model("gpt2")
    kept: list[TrainingState] = []

    def keep(state: TrainingState) -> None:
        if state.step == 3:
            copied = {name: tensor.clone() for name, tensor in state.weights.items()}
            kept.append(TrainingState(3, copied))

    training = RewardTraining(epochs=9, batch_size=16, learning_rate=1e-2, patience=2)
    history = train_reward_model(model, data[:48], wrong, training, Seeds(0), keep_state=keep)
    assert (history.best_epoch, history.stopped_early, len(history.curve)) == (1, True, 9)
    assert all(torch.equal(p, kept[0].weights[name]) for name, p in model.weights.named_parameters())


def test_an_interrupted_training_goes_on_to_the_same_weights() -> None:
    data, states = make_comparisons(80), []

    def keep(state: TrainingState) -> None:
        if state.step == 6:  # After the first validation, within the second epoch.
            moments = {k: {n: torch.as_tensor(t).clone() for n, t in m.items()} for k, m in state.moments.items()}
            weights = {name: tensor.clone() for name, tensor in state.weights.items()}
            states.append(
                TrainingState(6, weights, moments, list(state.curve), dict(state.best), list(state.validation))
            )

    whole, rest = make_tiny_model("gpt2", dropout=0.2), make_tiny_model("gpt2", dropout=0.2)
    first = train_reward_model(whole, data[:64], data[64:], FAST, Seeds(0), keep_state=keep)
    second = train_reward_model(rest, data[:64], data[64:], FAST, Seeds(0), state=states[0])
    assert first == second
    assert have_equal_weights(whole, rest)


def test_the_weights_depend_on_the_seed_only() -> None:
    data, results = make_comparisons(48), []
    training = RewardTraining(epochs=1, batch_size=16, learning_rate=1e-2, patience=0)
    for seed in (0, 0, 1):
        model = make_tiny_model("gpt2", dropout=0.2)
        torch.manual_seed(len(results))
        before = torch.random.get_rng_state()
        train_reward_model(model, data, [], training, Seeds(seed))
        assert torch.equal(before, torch.random.get_rng_state())
        results.append(model)
    assert have_equal_weights(results[0], results[1])
    assert not have_equal_weights(results[0], results[2])


def test_a_loss_that_is_not_finite_stops_with_advice() -> None:
    model = make_tiny_model("gpt2")
    with torch.no_grad():
        model.weights.score.weight.fill_(float("nan"))
    with pytest.raises(LessonError, match="nan at step 1"):
        train_reward_model(model, make_comparisons(8), make_comparisons(4), FAST, Seeds(0))


def test_the_learning_rate_warms_up_and_decays() -> None:
    rates = [_schedule(step, 100, 500) for step in range(100)]
    assert rates.index(max(rates)) == 9
    assert rates[0] == pytest.approx(0.1)
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert 0 < rates[-1] < 0.01
    assert _schedule(0, 3, 0) == 1.0


def test_patience_counts_epochs_since_the_best() -> None:
    losses = [{"ranking_loss": loss} for loss in (0.5, 0.4, 0.6, 0.45)]
    assert [_is_out_of_patience(losses[:k], 2) for k in range(5)] == [False, False, False, False, True]
    assert not _is_out_of_patience(losses, 0)
