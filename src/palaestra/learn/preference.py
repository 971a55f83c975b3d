"""Learning from preferences: a response that is right is made likelier than one that is wrong (DPO).

In order: a rejected answer is found for every example, the log-probs of both under the weights of the start (the
reference) are written down, then the usual loop of `supervised` runs on another loss.

The rejected answer is the one that the example brings in `metadata["rejected"]`, or else the student's own: it is asked
the question a few times, and the first answer that the scorer finds wrong is taken, by its exact tokens. An example
without either takes no part in the preference; with `sft_weight` its response is still learned.

Why not TRL's trainer: it tokenises prompt and answers anew, so the tokens that the student sampled could not be the
tokens of the loss; it cannot be resumed to the bit; and it knows no examples without a pair. The losses are its own
(`tests/learn/test_preference.py` calls its code): `loss_type=["sigmoid", "sft"]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import cross_entropy, logsigmoid

from palaestra.core.errors import LessonError, SettingsError
from palaestra.core.records import Completion, Example, Score
from palaestra.core.seeding import Seeds
from palaestra.engines.base import Request, Sampling
from palaestra.engines.models import LoadedModel
from palaestra.learn.batches import IGNORE, Encoded, collate, encode
from palaestra.learn.progress import TrainingState
from palaestra.learn.student import Keep, ModelStudent, OnStep, Scorer, Start
from palaestra.learn.supervised import Supervision, all_batches, optimise, pad_id_of


@dataclass(frozen=True, slots=True)
class Preference:
    """How preferences are learned.

    Arguments:
        beta: how strongly the student is held to the weights that it started from. On the embedded student 0.5
            learned more than the 0.1 that is usual with preferences of people.
        sft_weight: weight of the cross-entropy of the right responses, beside the preference (as in RPO). It keeps
            them likely, and is what examples without a rejected answer teach. 0 is plain DPO.
        samples: how often the student is asked for a wrong answer of its own; 0 takes only what the examples bring.
        temperature, max_tokens: of these answers.
        learning_rate: 0 means the supervision's.
    """

    beta: float = 0.5
    sft_weight: float = 1.0
    samples: int = 4
    temperature: float = 1.0
    max_tokens: int = 128
    learning_rate: float = 0.0

    def __post_init__(self) -> None:
        for name, good, wanted in (
            ("beta", self.beta > 0, "above 0"),
            ("sft_weight", self.sft_weight >= 0, "at least 0"),
            ("samples", self.samples >= 0, "at least 0"),
            ("temperature", self.temperature > 0, "above 0"),
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("learning_rate", self.learning_rate >= 0, "at least 0"),
        ):
            if not good:
                raise SettingsError(f"learning from preferences needs {name} {wanted}; got {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class Pair:
    """The same question with the right response, and with a wrong one where there is one."""

    chosen: Encoded
    rejected: Encoded | None = None

    @property
    def longer(self) -> Encoded:
        return max(self.rows, key=len)

    @property
    def rows(self) -> list[Encoded]:
        return [self.chosen] if self.rejected is None else [self.chosen, self.rejected]


def dpo_losses(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    reference_chosen: torch.Tensor,
    reference_rejected: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """The loss of each pair from the log-probs of whole responses (Rafailov et al. 2023, equation 7)."""
    return -logsigmoid(beta * ((chosen - reference_chosen) - (rejected - reference_rejected)))


def response_logprobs_BT(model: Any, rows: Sequence[Encoded], pad_id: int) -> torch.Tensor:
    """The log-prob of every token of the responses, 0 elsewhere; the first column is that of the second token."""
    batch = collate(rows, pad_id, model.device)
    labels_BT = batch.pop("labels")[:, 1:]
    logits_BTV = model(**batch).logits[:, :-1].float()
    loss_N = cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), ignore_index=IGNORE, reduction="none")
    return -loss_N.view(labels_BT.shape)


def preference_loss(
    model: Any, pairs: Sequence[Pair], reference: Sequence[Sequence[float]], settings: Preference, pad_id: int
) -> torch.Tensor:
    """The loss of a batch: the mean preference loss, and the cross-entropy of the right responses by its weight.

    Arguments:
        pairs: those without a rejected answer have a preference loss of 0.
        reference: the log-probs of the chosen and the rejected response of each whole pair, in order.
    """
    count = len(pairs)
    paired = [place for place, pair in enumerate(pairs) if pair.rejected is not None]
    rows = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs if pair.rejected is not None]
    total_B = response_logprobs_BT(model, rows, pad_id).sum(-1)
    loss = total_B.new_zeros(())
    if paired:
        before_P2 = torch.tensor(reference, device=total_B.device)
        losses_P = dpo_losses(total_B[paired], total_B[count:], before_P2[:, 0], before_P2[:, 1], settings.beta)
        # By all examples of the batch: a pair weighs the same in any company.
        loss = losses_P.sum() / count
    if settings.sft_weight:
        tokens = sum(len(pair.chosen.response_ids) for pair in pairs)
        loss = loss - settings.sft_weight * total_B[:count].sum() / tokens
    return loss


class PreferenceStudent(ModelStudent):
    """A student that learns from preferences.

    After a training its `metrics` are `pairs_given`, `pairs_own` and `without_pair`: examples whose rejected answer
    came with them, was the student's own, or could not be had.

    Arguments:
        score: judges the student's own answers; without it only those that come with examples are used.
        others: see `ModelStudent`.
    """

    Settings = Preference
    settings: Preference

    def __init__(
        self,
        model: LoadedModel,
        supervision: Supervision = Supervision(),
        settings: Preference | None = None,
        *,
        score: Scorer | None = None,
        start: Start = "base",
        batch_size: int = 128,
        keep_every: float = 120.0,
    ) -> None:
        super().__init__(model, supervision, settings, start=start, batch_size=batch_size, keep_every=keep_every)
        self.score = score

    def check(self, examples: Sequence[Example]) -> None:
        super().check(examples)
        for example in examples:
            rejected = example.metadata.get("rejected", "")
            if not isinstance(rejected, str):
                raise LessonError(f"the rejected answer of an example is a text; got {type(rejected).__name__}")
            if rejected.strip():
                super().check([replace(example, response=rejected)])

    def pairs(self, examples: Sequence[Example], seeds: Seeds) -> list[Pair]:
        """A rejected answer for every example, where one can be had; the student is asked as it is now."""
        limit = self._engine.context
        found = []
        for example in examples:
            rejected = str(example.metadata.get("rejected", ""))
            pair = Pair(encode(example, self.tokenizer, limit, self.processor))
            if rejected.strip() and rejected != example.response:
                # The picture is read once: only the response is another.
                ids = (*self.tokenizer.encode(rejected, add_special_tokens=False), self.tokenizer.eos_token_id)
                pair = Pair(pair.chosen, replace(pair.chosen, response_ids=ids))
            found.append(pair)
        missing = [index for index, pair in enumerate(found) if pair.rejected is None]
        own = self._own(examples, missing, seeds) if self.score is not None and self.settings.samples else {}
        for index, answer in own.items():
            chosen = found[index].chosen
            found[index] = Pair(chosen, replace(chosen, response_ids=answer.token_ids))
        self.metrics = {
            "pairs_given": float(len(found) - len(missing)),
            "pairs_own": float(len(own)),
            "without_pair": float(len(missing) - len(own)),
        }
        return found

    def _own(self, examples: Sequence[Example], places: Sequence[int], seeds: Seeds) -> dict[int, Completion]:
        """The student's own wrong answers, by the place of the example."""
        assert self.score is not None
        settings = self.settings
        sampling = Sampling(settings.max_tokens, settings.temperature, count=settings.samples)
        requests = [
            Request(examples[place].messages, sampling, seeds.derive("own", place).integer()) for place in places
        ]
        found: dict[int, Completion] = {}
        for place, answers in zip(places, self._engine.generate(requests), strict=True):
            for answer in answers:
                if not isinstance(answer, Completion):
                    continue
                outcome = self.score(examples[place], answer)
                # A failure says nothing about the answer.
                if isinstance(outcome, Score) and outcome.value < 1.0:
                    found[place] = answer
                    break
        return found

    def _train(
        self, examples: Sequence[Example], seeds: Seeds, on_step: OnStep, state: TrainingState | None, keep: Keep | None
    ) -> list[tuple[int, float]]:
        settings, model, pad_id = self.settings, self._trained, pad_id_of(self.tokenizer)
        how = replace(self.supervision, learning_rate=settings.learning_rate or self.supervision.learning_rate)
        pairs = self.pairs(examples, seeds)
        if not settings.sft_weight:
            pairs = [pair for pair in pairs if pair.rejected is not None]
        if not pairs:
            raise LessonError(self._nothing(len(examples)))
        reference = self._reference(pairs, pad_id)

        def loss_of(batch: Sequence[int]) -> torch.Tensor:
            before = [reference[index] for index in batch if index in reference]
            return preference_loss(model, [pairs[index] for index in batch], before, settings, pad_id)

        batches = list(all_batches([pair.longer for pair in pairs], how, seeds))
        return optimise(model, batches, loss_of, how, seeds, on_step=on_step, state=state, keep_state=keep)

    @torch.no_grad()
    def _reference(self, pairs: Sequence[Pair], pad_id: int) -> dict[int, list[float]]:
        """The log-probs of both responses under the weights of the start, by the place of the pair."""
        self._trained.eval()
        whole = [(place, pair) for place, pair in enumerate(pairs) if pair.rejected is not None]
        found: dict[int, list[float]] = {}
        # One epoch in any order: each pair once, with others of its length and shape.
        once = replace(self.supervision, epochs=1)
        for batch in all_batches([pair.longer for _, pair in whole], once, Seeds(0)):
            rows = [row for index in batch for row in whole[index][1].rows]
            total_B = response_logprobs_BT(self._trained, rows, pad_id).sum(-1)
            for index, both in zip(batch, total_B.view(-1, 2).tolist(), strict=True):
                found[whole[index][0]] = both
        return found

    def _nothing(self, count: int) -> str:
        why = "no answer of the student was found wrong" if self.score is not None else "no scorer was given"
        return (
            f"none of the {count} examples has a rejected answer: none came with one and {why}; "
            "give metadata['rejected'], ask for more samples, or set sft_weight above 0 to learn the responses all the same"
        )
