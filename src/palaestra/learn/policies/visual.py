"""A model that reads images as a policy: it answers through its engine, and is judged by whole sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from palaestra.core.errors import RewardError
from palaestra.core.records import Completion, Example, Failure, StopReason
from palaestra.engines.base import Engine, Request, Sampling
from palaestra.engines.cpu.kernels import select_matmul_kernels
from palaestra.learn.batches import IGNORE, Encoded, collate, of_one_shape
from palaestra.learn.policies.base import ActionEvaluation
from palaestra.learn.rollouts import Rollout, Selection, everything

MICROBATCH_SIZE = 16
"""Answers that one pass with gradients takes."""


@dataclass(slots=True)
class VisualInputs:
    """The exact tokens of a rollout and the pictures before them, by sequence."""

    rows: list[Encoded]


class VisualPolicy:
    """What a group method needs of a model that reads images; at temperature 1.

    Arguments:
        model: an image-text-to-text model of transformers, or peft's around one.
    """

    by_sequence, has_critic = True, False

    def __init__(self, model: Any, pad_id: int, microbatch_size: int = MICROBATCH_SIZE) -> None:
        self.model, self.pad_id, self.microbatch_size = model, pad_id, microbatch_size

    def train(self, mode: bool = True) -> VisualPolicy:
        """Dropout stays off while learning as well: see `LanguageModelPolicy.train`."""
        self.model.eval()
        return self

    def eval(self) -> VisualPolicy:
        return self.train(False)

    def evaluate_actions(
        self, rollout: Rollout, selection: Selection, entropy: bool = False, values: bool = True
    ) -> ActionEvaluation:
        """Log-probs, and entropies if wanted, at the tokens of the selected sequences, `[sequences, width]`."""
        rows = [rollout.inputs.rows[sequence] for sequence in selection.index.tolist()]
        logprobs: list[torch.Tensor] = [torch.zeros(0)] * len(rows)
        entropies = list(logprobs)
        for part in of_one_shape(range(len(rows)), rows):
            batch = collate([rows[place] for place in part], self.pad_id, self.model.device)
            labels_BT = batch.pop("labels")[:, 1:]
            logp_BTV = self.model(**batch).logits[:, :-1].float().log_softmax(-1)
            chosen_BT = logp_BTV.gather(-1, labels_BT.clamp(min=0)[..., None])[..., 0]
            for place, labels_T, chosen_T, logp_TV in zip(part, labels_BT, chosen_BT, logp_BTV, strict=True):
                there_T = labels_T != IGNORE
                logprobs[place] = _padded(chosen_T[there_T], selection.width)
                if entropy:
                    entropies[place] = _padded(-(logp_TV.exp() * logp_TV).sum(-1)[there_T], selection.width)
        return ActionEvaluation(torch.stack(logprobs).cpu(), torch.stack(entropies).cpu() if entropy else None)

    def max_microbatch_size(self, rollout: Rollout) -> int:
        return self.microbatch_size

    @torch.no_grad()
    def logprobs_BT(self, rollout: Rollout) -> torch.Tensor:
        """The log-probs of all tokens under the weights of now, for a reference."""
        self.model.eval()
        found_BT = torch.zeros_like(rollout.rewards_BT)
        with select_matmul_kernels():
            for selection in everything(rollout, True, self.microbatch_size):
                found_BT[selection.index, : selection.width] = self.evaluate_actions(rollout, selection).logprobs
        return found_BT * rollout.mask_BT

    def parameter_groups(self, actor_rate: float, critic_rate: float) -> list[dict[str, object]]:
        return [{"params": [p for p in self.model.parameters() if p.requires_grad], "lr": actor_rate}]


def collect_answers(
    engine: Engine,
    examples: Sequence[Example],
    prompts: Sequence[Encoded],
    reward: Callable[[Example, Completion], float],
    group_size: int,
    max_tokens: int,
    seeds: Sequence[int],
) -> Rollout:
    """A group of answers to the question of each example.

    Arguments:
        prompts: the same questions as the model sees them; their responses are ignored.
        reward: of an answer; raises `RewardError` where it has none.
        seeds: of the answers, one a question.
    """
    sampling = Sampling(max_tokens, temperature=1.0, count=group_size)
    requests = [Request(example.messages, sampling, seed) for example, seed in zip(examples, seeds, strict=True)]
    answers = [answer for several in engine.generate(requests) for answer in several]
    rows, values, failures = [], [], []
    for sequence, answer in enumerate(answers):
        example, prompt = examples[sequence // group_size], prompts[sequence // group_size]
        value, failure = 0.0, ""
        try:
            if isinstance(answer, Failure):
                raise RewardError(f"{answer.cause}: {answer.message}")
            value = reward(example, answer)
        except RewardError as error:
            failure = str(error)
        ids = answer.token_ids if isinstance(answer, Completion) else ()
        rows.append(Encoded(prompt.prompt_ids, ids, prompt.images))
        values.append(value)
        failures.append(failure)
    width = max(1, *(len(row.response_ids) for row in rows))
    length_B1 = torch.tensor([[len(row.response_ids)] for row in rows])
    place_BT = torch.arange(width)[None]
    last_BT = place_BT == length_B1 - 1
    cut_B = torch.tensor([not isinstance(a, Completion) or a.stop_reason is StopReason.LENGTH for a in answers])
    chosen = [torch.tensor(answer.logprobs) if isinstance(answer, Completion) else torch.zeros(0) for answer in answers]
    return Rollout(
        rewards_BT=last_BT * torch.tensor(values)[:, None],
        logprobs_BT=torch.stack([_padded(one, width) for one in chosen]),
        mask_BT=place_BT < length_B1,
        terminated_BT=last_BT & ~cut_B[:, None],
        ended_BT=last_BT,
        inputs=VisualInputs(rows),
        group_B=torch.arange(len(rows)) // group_size,
        valid_B=torch.tensor([not failure for failure in failures]),
        cut_B=cut_B,
        limit=max_tokens,
        episode_returns=[value for value, failure in zip(values, failures, strict=True) if not failure],
        episode_lengths=length_B1[:, 0].tolist(),
        failures=[failure for failure in failures if failure],
        records=list(answers),
    )


def _padded(values_T: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(values_T, (0, width - len(values_T)))
