"""Direct preference optimization (DPO): make correct responses more likely than wrong ones.

The steps are: find a rejected answer for every example, compute the log-probs of both responses under the initial weights
(the reference), then run the loop of `supervised` on the DPO loss.

The rejected answer is `metadata["rejected"]` of the example, or else the student's own: the first of a few sampled answers
that the scorer finds wrong, with its exact tokens. Examples without a rejected answer contribute only to the supervised
part of the loss (`sft_weight`).

It is not TRL's trainer for three reasons: TRL tokenises prompts and answers again, so the loss would not see the
sampled tokens; it does not resume bit-identically; and it requires a pair for every example. The losses are the same
(`tests/students/test_preference.py` compares them): `loss_type=["sigmoid", "sft"]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import logsigmoid

from palaestra.core.errors import LessonError
from palaestra.core.records import Completion, Example, Request, Sampling, Score
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_ranges, setting
from palaestra.envs.lesson.student import OnStep
from palaestra.students.batches import Encoded, ResponseLogProbs, encode
from palaestra.students.llama_factory import TrainingRow
from palaestra.students.student import Keep, ModelStudent
from palaestra.students.supervised import TrainingState, all_batches, optimize, padding_id


@dataclass(frozen=True, slots=True)
class Preference:
    """Settings of DPO. With a `sft_weight` of 0 it is plain DPO.

    For `nano` a `beta` of 0.5 worked better than the usual 0.1.
    """

    beta: float = setting(0.5, above=0)
    """Strength of the regularization towards the reference."""
    sft_weight: float = setting(1.0, low=0)
    """Weight of the cross-entropy of the correct responses (RPO), the only loss of examples without a wrong answer."""
    samples: int = setting(4, low=0)
    """Answers to sample to find a wrong one; 0 uses only those of the examples."""
    temperature: float = setting(1.0, above=0)
    """Sampling temperature of these answers."""
    max_tokens: int = setting(128, low=1)
    """Maximum tokens of these answers."""
    learning_rate: float = setting(0.0, low=0)
    """Learning rate; 0 means that of the supervision."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """A question with the correct response and, if there is one, a wrong response."""

    chosen: Encoded
    rejected: Encoded | None = None

    @property
    def longer(self) -> Encoded:
        return max(self.rows, key=len)

    @property
    def rows(self) -> list[Encoded]:
        return [self.chosen] if self.rejected is None else [self.chosen, self.rejected]


def preference_loss(
    logprobs: ResponseLogProbs,
    pairs: Sequence[PreferencePair],
    reference: Sequence[Sequence[float]],
    settings: Preference,
) -> torch.Tensor:
    """The loss of a batch: the mean DPO loss plus the weighted cross-entropy of the correct responses.

    Arguments:
        pairs: a pair without a rejected answer has a DPO loss of 0.
        reference: the reference log-probs of the chosen and the rejected response, for the pairs that have both.
    """
    count = len(pairs)
    paired = [place for place, pair in enumerate(pairs) if pair.rejected is not None]
    rows = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs if pair.rejected is not None]
    total_B = logprobs(rows).sum(-1)
    loss = total_B.new_zeros(())
    if paired:
        reference_P2 = torch.tensor(reference, device=total_B.device)
        # Rafailov et al. 2023, equation 7, from the log-probs of whole responses.
        margins_P = (total_B[paired] - reference_P2[:, 0]) - (total_B[count:] - reference_P2[:, 1])
        # Divide by all examples of the batch, so that every pair has the same weight.
        loss = -logsigmoid(settings.beta * margins_P).sum() / count
    if settings.sft_weight:
        tokens = sum(len(pair.chosen.response_ids) for pair in pairs)
        loss = loss - settings.sft_weight * total_B[:count].sum() / tokens
    return loss


class PreferenceStudent(ModelStudent):
    """A student that learns by DPO.

    Its `metrics` count the examples with a rejected answer of their own (`pairs_given`), with one of the student's
    (`pairs_own`), and with none (`without_pair`).

    Arguments:
        score: scores the student's own answers. Without it, only the rejected answers of examples are used.
        others: see `ModelStudent`.
    """

    Settings = Preference
    settings: Preference

    def check(self, examples: Sequence[Example]) -> None:
        super().check(examples)
        for example in examples:
            rejected = example.metadata.get("rejected", "")
            if not isinstance(rejected, str):
                raise LessonError(f"metadata['rejected']: expected a text; got {type(rejected).__name__}")
            if rejected.strip():
                super().check([replace(example, response=rejected)])

    def make_pairs(self, examples: Sequence[Example], seeds: Seeds) -> list[PreferencePair]:
        """Find a rejected answer for every example, if possible. Samples come from the current weights."""
        limit = self._engine.context
        pairs = []
        for example in examples:
            rejected = str(example.metadata.get("rejected", ""))
            pair = PreferencePair(encode(example, self.tokenizer, limit, self.processor))
            if rejected.strip() and rejected != example.response:
                # Images are encoded once: only the response differs.
                ids = (*self.tokenizer.encode(rejected, add_special_tokens=False), self.tokenizer.eos_token_id)
                pair = PreferencePair(pair.chosen, replace(pair.chosen, response_ids=ids))
            pairs.append(pair)
        missing = [index for index, pair in enumerate(pairs) if pair.rejected is None]
        samples = self.score is not None and self.settings.samples
        own = self._sample_wrong_answers(examples, missing, seeds) if samples else {}
        for index, answer in own.items():
            chosen = pairs[index].chosen
            pairs[index] = PreferencePair(chosen, replace(chosen, response_ids=answer.token_ids))
        self.metrics = {
            "pairs_given": float(len(pairs) - len(missing)),
            "pairs_own": float(len(own)),
            "without_pair": float(len(missing) - len(own)),
        }
        return pairs

    def _sample_wrong_answers(
        self, examples: Sequence[Example], places: Sequence[int], seeds: Seeds
    ) -> dict[int, Completion]:
        """Wrong answers of the student, by the index of the example."""
        assert self.score is not None
        sampling = Sampling(self.settings.max_tokens, self.settings.temperature, count=self.settings.samples)
        requests = [Request(examples[k].messages, sampling, seeds.derive("own", k).integer()) for k in places]
        wrong: dict[int, Completion] = {}
        for place, answers in zip(places, self._engine.generate(requests), strict=True):
            for answer in answers:
                outcome = self.score(examples[place], answer) if isinstance(answer, Completion) else None
                # A failure does not mean that the answer is wrong.
                if isinstance(answer, Completion) and isinstance(outcome, Score) and outcome.value < 1.0:
                    wrong[place] = answer
                    break
        return wrong

    def _train(
        self, examples: Sequence[Example], seeds: Seeds, on_step: OnStep, state: TrainingState | None, keep: Keep | None
    ) -> list[tuple[int, float]]:
        settings, model = self.settings, self._trained
        supervision = replace(self.supervision, learning_rate=settings.learning_rate or self.supervision.learning_rate)
        pairs = self.make_pairs(examples, seeds)
        if not settings.sft_weight:
            pairs = [pair for pair in pairs if pair.rejected is not None]
        if not pairs:
            raise LessonError(self._explain_no_pairs(len(examples)))
        logprobs = ResponseLogProbs(model, padding_id(self.tokenizer))
        reference = self._reference(pairs, logprobs)

        def batch_loss(batch: Sequence[int]) -> torch.Tensor:
            reference_logprobs = [reference[index] for index in batch if index in reference]
            return preference_loss(logprobs, [pairs[index] for index in batch], reference_logprobs, settings)

        batches = list(all_batches([pair.longer for pair in pairs], supervision, seeds))
        return optimize(model, batches, batch_loss, supervision, seeds, on_step=on_step, state=state, keep_state=keep)

    def _make_rows(self, examples: Sequence[Example], seeds: Seeds) -> tuple[list[TrainingRow], dict[str, object]]:
        """Pairs only: LLaMA-Factory's DPO does not support examples without a rejected answer."""
        pairs = [pair for pair in self.make_pairs(examples, seeds) if pair.rejected is not None]
        if not pairs:
            raise LessonError(self._explain_no_pairs(len(examples)))
        rows = []
        for pair in pairs:
            chosen, rejected = (self._decode_row(row) for row in pair.rows)
            rows.append(replace(chosen, rejected=rejected.response))
        return rows, {"pref_beta": self.settings.beta, "pref_ftx": self.settings.sft_weight}

    @torch.no_grad()
    def _reference(self, pairs: Sequence[PreferencePair], logprobs: ResponseLogProbs) -> dict[int, list[float]]:
        """The log-probs of both responses under the initial weights, by the index of the pair."""
        self._trained.eval()
        complete = [(place, pair) for place, pair in enumerate(pairs) if pair.rejected is not None]
        totals: dict[int, list[float]] = {}
        # One epoch: each pair once, in batches of similar length.
        once = replace(self.supervision, epochs=1)
        for batch in all_batches([pair.longer for _, pair in complete], once, Seeds(0)):
            rows = [row for index in batch for row in complete[index][1].rows]
            total_B = logprobs(rows).sum(-1)
            for index, both in zip(batch, total_B.view(-1, 2).tolist(), strict=True):
                totals[complete[index][0]] = both
        return totals

    def _explain_no_pairs(self, count: int) -> str:
        reason = "no sampled answer was wrong" if self.score is not None else "there is no scorer"
        return (
            f"none of the {count} examples has a rejected answer, and {reason}; "
            "set metadata['rejected'], increase samples, or set sft_weight above 0 to learn the responses"
        )
