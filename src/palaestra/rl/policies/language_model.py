"""Language models as policies: they sample with a key-value cache per slot and evaluate whole sequences.

Sampling and evaluation compute the same log-prob for the same token: cache, position ids and masks describe exactly the
computation of one pass over the whole sequence. `tests/properties/test_log_probs.py` tests this. `ReferencePolicy` is the
reference of the KL penalty.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from palaestra.core.errors import EnvError, ModelError
from palaestra.core.seeding import Seeds
from palaestra.kernels.cpu import fuse_activations, select_matmul_kernels
from palaestra.kernels.gpu.device import count_free_bytes
from palaestra.kernels.gpu.stepper import PackedStepper
from palaestra.kernels.operations import filter_logits, sample_tokens
from palaestra.kernels.sequence_forward import SequenceForward, SequenceOutputs, pad_or_cut
from palaestra.kernels.slots import Stepper, make_stepper
from palaestra.models.families import check_causal, context_length
from palaestra.rl.distributed.ranks import gather_weights, sum_over_ranks
from palaestra.rl.losses import kl_k1
from palaestra.rl.optimizers import fork_torch_rng
from palaestra.rl.rollouts import ActionEvaluation, Rollout, Selection, TokenInputs, select_share

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_MICROBATCH_LOGITS = 1 << 25
"""Maximum number of logits in one microbatch: 128 MB in float32, and a few times that with gradients."""


class LanguageModelPolicy(nn.Module):
    """A causal language model that chooses tokens.

    Arguments:
        model: a causal language model of transformers, or peft's wrapper of one.
        critic: `None`, `"head"` (a value head on the model's last layer), or a separate `LanguageModelCritic`.
        temperature: the sampling temperature. Log-probs are those of the sampled distribution.
        vocabulary: number of the model's outputs that are tokens; a model may have more outputs than its tokenizer has
            tokens. 0 means all.
        microbatch_size: number of sequences in one pass; 0 derives it from the size of the logits, or from the free memory
            of a GPU.
        gradient_checkpointing: keep only the input of each block, and compute the rest again in the backward pass.
        seeds: for the value head's weights.
    """

    by_sequence = True
    has_cache = True

    def __init__(
        self,
        model: PreTrainedModel,
        critic: Literal["head"] | LanguageModelCritic | None = None,
        temperature: float = 1.0,
        vocabulary: int = 0,
        microbatch_size: int = 0,
        gradient_checkpointing: bool = False,
        seeds: Seeds = Seeds(0),
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> None:
        super().__init__()
        check_causal(model.config, trainable=True)
        self.model, self.temperature = model, temperature
        self.top_p, self.top_k = top_p, top_k
        self.kept: list[np.ndarray] | None = None
        """The tokens that top-p and top-k have kept in the last `act`, by slot; `None` without them."""
        fuse_activations(model)
        config = model.config.get_text_config()
        self.rows = int(model.get_output_embeddings().weight.shape[0])
        self.vocabulary = vocabulary or self.rows
        if self.vocabulary > self.rows:
            raise ModelError(
                f"the tokenizer has {self.vocabulary} tokens and the model only {self.rows} outputs; they do not match"
            )
        self.context = context_length(model.config) or 1 << 30
        self.value_head: nn.Linear | None = None
        self.critic = critic if isinstance(critic, nn.Module) else None
        if critic == "head":
            self.value_head = _value_head(int(config.hidden_size), seeds).to(model.device)
        self.has_critic = critic is not None
        self.microbatch_size = microbatch_size
        self.gradient_checkpointing = gradient_checkpointing
        self._stepper: Stepper | None = None
        self.sequence_forward = SequenceForward(model, gradient_checkpointing)
        super().train(False)

    def train(self, mode: bool = True) -> LanguageModelPolicy:
        """Set the mode, but keep dropout off while learning.

        With dropout the log-probs of the update would differ from those of the rollout: ratios would not start at 1.
        """
        self.training = mode
        return self

    def with_model(self, model: PreTrainedModel) -> LanguageModelPolicy:
        """Return the same policy with other weights and without a critic."""
        policy = LanguageModelPolicy(model, None, self.temperature, self.vocabulary, self.microbatch_size)
        policy.top_p, policy.top_k = self.top_p, self.top_k
        return policy

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    def begin(self, slots: int) -> None:
        """Drop all sequences. The next `act` starts `slots` new ones."""
        self.model.eval()
        if self._stepper is None or self._stepper.slots != slots:
            self._stepper = make_stepper(self.model, slots)
        self._stepper.clear()

    @torch.no_grad()
    def act(
        self,
        tokens_SL: np.ndarray,
        length_S: np.ndarray,
        fresh_S: np.ndarray,
        active_S: np.ndarray,
        uniform_S: np.ndarray,
        mask_SV: np.ndarray | None = None,
        waiting_S: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sample the next token of each slot; returns tokens, log-probs and entropies. Only those of sampling slots are valid.

        Arguments:
            uniform_S: one random number in [0, 1) per slot, the only source of randomness.
            mask_SV: the legal tokens.
            waiting_S: slots that sample nothing in this call and keep their sequence.
        """
        stepper = self._stepper
        assert stepper is not None, "call begin first"
        choosing_S = active_S if waiting_S is None else active_S & ~waiting_S
        starting = np.flatnonzero(fresh_S & choosing_S).tolist()
        logits_SV = None
        with select_matmul_kernels():
            stepper.rest(np.flatnonzero(~active_S).tolist())
            if (choosing_S & ~fresh_S).any():
                last_S = tokens_SL[np.arange(len(length_S)), np.maximum(length_S - 1, 0)]
                waiting = np.flatnonzero(active_S & ~choosing_S).tolist()
                logits_SV = stepper.step(torch.from_numpy(last_S), starting, waiting)
            if starting:
                logits_SV = stepper.start({s: tokens_SL[s, : length_S[s]].tolist() for s in starting}, logits_SV)
        assert logits_SV is not None, "no slot is active"
        restricts = self.top_p < 1.0 or self.top_k > 0
        if isinstance(stepper, PackedStepper) and mask_SV is None and not restricts:
            chosen_S, logprobs_S, entropy_S = stepper.sample(uniform_S, self.temperature, self.vocabulary)
        else:
            logits_SV = logits_SV[:, : self.vocabulary].float()
            uniform = torch.from_numpy(uniform_S).to(logits_SV.device)
            legal_SV = None if mask_SV is None else torch.from_numpy(mask_SV.astype(bool)).to(logits_SV.device)
            if restricts:
                legal_SV = self._restrict(logits_SV, legal_SV)
            sampled = sample_tokens(logits_SV, uniform, self.temperature, legal_SV)
            chosen_S, logprobs_S, entropy_S = (values_S.cpu().numpy() for values_S in sampled)
        if not np.isfinite(logprobs_S[choosing_S]).all():
            raise ModelError("the policy's log-probs are not finite; lower the learning rate")
        return chosen_S, logprobs_S, entropy_S

    def _restrict(self, logits_SV: torch.Tensor, legal_SV: torch.Tensor | None) -> torch.Tensor:
        """The tokens that top-p and top-k keep. They are recorded, because learning uses the same distribution."""
        if legal_SV is not None:
            logits_SV = logits_SV.masked_fill(~legal_SV, float("-inf"))
        top_p, top_k = (logits_SV.new_tensor([[value]]) for value in (self.top_p, float(self.top_k)))
        kept_SV = filter_logits(logits_SV / self.temperature, top_p, top_k).isfinite()
        self.kept = [row_V.nonzero()[0] for row_V in kept_SV.cpu().numpy()]
        return kept_SV

    def evaluate_actions(
        self, rollout: Rollout, selection: Selection, entropy: bool = False, values: bool = True
    ) -> ActionEvaluation:
        """Log-probs, entropies and values at the actions of the selected sequences, `[sequences, width]`."""
        inputs: TokenInputs = rollout.inputs
        sequences = selection.index.tolist()
        use_value_head = values and self.value_head is not None
        # Entropies and restricted distributions need logits. Log-probs alone are computed from hidden states.
        needs_logits = entropy or bool(inputs.legal) or self.sequence_forward.fast is None
        needs_hidden = use_value_head or not needs_logits
        outputs = outputs_at_actions(
            self.sequence_forward, inputs, sequences, selection.width, needs_hidden, needs_logits
        )
        shape = (len(sequences), selection.width)
        tokens_N = pad_or_cut([inputs.get_actions(sequence) for sequence in sequences], selection.width).flatten()
        tokens_N = tokens_N.to(self.device)
        if outputs.rows_N is not None:
            tokens_N = tokens_N[outputs.rows_N]
        entropy_BR = None
        if outputs.logits_NV is None:
            assert outputs.hidden_ND is not None
            logprobs_N = self.sequence_forward.compute_logprobs(
                outputs.hidden_ND, tokens_N, self.temperature, self.vocabulary
            )
        else:
            logits_NV = self._scale_logits(outputs, inputs, selection)
            logprobs_N = -nn.functional.cross_entropy(logits_NV, tokens_N, reduction="none")
            if entropy:
                logp_NV = logits_NV.log_softmax(-1)
                entropy_N = -(logp_NV.exp() * logp_NV.masked_fill(logp_NV == float("-inf"), 0.0)).sum(-1)
                entropy_BR = outputs.to_table(entropy_N, *shape)
        logprobs_BR = outputs.to_table(logprobs_N, *shape)
        values_BR = None
        if self.value_head is not None and use_value_head:
            assert outputs.hidden_ND is not None
            values_BR = outputs.to_table(self.value_head(outputs.hidden_ND.float())[..., 0], *shape)
        elif values and self.critic is not None:
            values_BR = self.critic.values(inputs, sequences, selection.width)[:, :-1]
        device = rollout.rewards_BT.device
        return ActionEvaluation(
            logprobs_BR.to(device),
            entropy_BR.to(device) if entropy_BR is not None else None,
            values_BR.to(device) if values_BR is not None else None,
        )

    def compute_distributions(self, inputs: TokenInputs, selection: Selection) -> torch.Tensor:
        """The log-probs of all tokens at the actions of the selected sequences, `[sequences, width, vocabulary]`."""
        sequences, width = selection.index.tolist(), selection.width
        outputs = outputs_at_actions(self.sequence_forward, inputs, sequences, width, hidden=False, logits=True)
        logp_NV = self._scale_logits(outputs, inputs, selection).log_softmax(-1)
        if outputs.rows_N is not None:
            table_MV = logp_NV.new_zeros(len(sequences) * width, logp_NV.shape[-1])
            logp_NV = table_MV.index_copy(0, outputs.rows_N, logp_NV)
        return logp_NV.view(len(sequences), width, -1)

    def _scale_logits(self, outputs: SequenceOutputs, inputs: TokenInputs, selection: Selection) -> torch.Tensor:
        """The logits of the sampled distribution."""
        assert outputs.logits_NV is not None
        logits_NV = outputs.logits_NV[:, : self.vocabulary].float()
        if self.temperature != 1.0:
            logits_NV = logits_NV / self.temperature
        if inputs.legal:
            legal = [inputs.legal[sequence] for sequence in selection.index.tolist()]
            logits_NV = mask_illegal(logits_NV, outputs.rows_N, legal, selection.width)
        return logits_NV

    @torch.no_grad()
    def values_BT(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        inputs: TokenInputs = rollout.inputs
        values_BT = torch.zeros_like(rollout.rewards_BT)
        next_BT = torch.zeros_like(rollout.rewards_BT)
        with gather_weights(self):
            for selection in select_share(rollout, self.max_microbatch_size(rollout)):
                sequences, width = selection.index.tolist(), selection.width
                if self.value_head is not None:
                    values_BR = _predict_values(self.sequence_forward, self.value_head, inputs, sequences, width)
                elif self.critic is not None:
                    values_BR = self.critic.values(inputs, sequences, width)
                else:
                    raise EnvError("the policy has no critic; expected critic='head' or a LanguageModelCritic")
                values_BR = values_BR.to(values_BT.device)
                values_BT[selection.index, :width] = values_BR[:, :-1]
                next_BT[selection.index, :width] = values_BR[:, 1:]
        return sum_over_ranks(values_BT), sum_over_ranks(next_BT)

    @torch.no_grad()
    def logprobs_BT(self, rollout: Rollout) -> torch.Tensor:
        """The log-probs of all actions under the current weights."""
        logprobs_BT = torch.zeros_like(rollout.rewards_BT)
        self.model.eval()
        with select_matmul_kernels(), gather_weights(self):
            for selection in select_share(rollout, self.max_microbatch_size(rollout)):
                evaluation = self.evaluate_actions(rollout, selection, values=False)
                logprobs_BT[selection.index, : selection.width] = evaluation.logprobs.to(logprobs_BT.device)
        return sum_over_ranks(logprobs_BT) * rollout.mask_BT

    def max_microbatch_size(self, rollout: Rollout) -> int:
        """The maximum number of sequences in one pass, limited by the number of logits."""
        if self.microbatch_size:
            return self.microbatch_size
        inputs: TokenInputs = rollout.inputs
        longest = inputs.reach(range(rollout.num_sequences), int(rollout.mask_BT.sum(-1).max()))
        if self.device.type == "cuda":
            return max(1, self._count_free_tokens() // (longest + 1))
        return max(1, MAX_MICROBATCH_LOGITS // ((longest + 1) * self.rows))

    def _count_free_tokens(self) -> int:
        """Estimate how many tokens of a pass with gradients fit into half of the free memory of the GPU."""
        config = self.model.config.get_text_config()
        free = count_free_bytes(self.device)
        hidden, layers, size = int(config.hidden_size), int(config.num_hidden_layers), self.model.dtype.itemsize
        if self.sequence_forward.fast is None:
            # About 40 values of the hidden size are kept per layer, and three float32 values per logit.
            return int(free // 2 // (layers * 40 * hidden * size + 12 * self.rows))
        # The packed pass keeps inputs and outputs of the norms, projections and the MLP, and no logits.
        kept = 10 * hidden + 3 * int(getattr(config, "intermediate_size", 0) or 4 * hidden)
        blocks = (layers + kept / hidden) * hidden if self.gradient_checkpointing else layers * kept
        return int(free // 2 // (blocks * size))

    def parameter_groups(self, learning_rate: float, critic_learning_rate: float) -> list[dict[str, object]]:
        groups: list[dict[str, object]] = [
            {"params": [p for p in self.model.parameters() if p.requires_grad], "lr": learning_rate}
        ]
        critic: nn.Module | None = self.value_head if self.value_head is not None else self.critic
        if critic is not None:
            groups.append({"params": [p for p in critic.parameters() if p.requires_grad], "lr": critic_learning_rate})
        return groups


def outputs_at_actions(
    forward: SequenceForward,
    inputs: TokenInputs,
    sequences: list[int],
    width: int,
    hidden: bool,
    logits: bool,
    include_end: bool = False,
) -> SequenceOutputs:
    """A model's outputs before each action and, if `include_end`, after the end of each response.

    Arguments:
        width: actions of the longest sequence; the table is `[sequences, width]`, with one more column if `include_end`.
    """
    prompts, responses = ([ids[s] for s in sequences] for ids in (inputs.prompts, inputs.responses))
    tokens = inputs.reach(sequences, width) + include_end
    outputs = forward(prompts, responses, tokens, hidden, logits, include_end)
    if not inputs.chosen:
        return outputs
    places = [inputs.chosen[s] for s in sequences]
    if include_end:
        places = [np.append(own, len(response)) for own, response in zip(places, responses, strict=True)]
    return outputs.select(places, tokens, width + include_end)


class LanguageModelCritic(nn.Module):
    """A separate critic: a language model's body and a value head."""

    def __init__(self, body: Any, width: int, seeds: Seeds = Seeds(0), gradient_checkpointing: bool = False) -> None:
        super().__init__()
        self.body = body
        self.head = _value_head(width, seeds).to(body.device)
        self.sequence_forward = SequenceForward(body, gradient_checkpointing)

    def values(self, inputs: TokenInputs, sequences: list[int], width: int) -> torch.Tensor:
        """The values before each action and after the end of the response, `[sequences, width + 1]`."""
        return _predict_values(self.sequence_forward, self.head, inputs, sequences, width)


def _predict_values(
    forward: SequenceForward, head: nn.Linear, inputs: TokenInputs, sequences: list[int], width: int
) -> torch.Tensor:
    outputs = outputs_at_actions(forward, inputs, sequences, width, hidden=True, logits=False, include_end=True)
    assert outputs.hidden_ND is not None
    return outputs.to_table(head(outputs.hidden_ND.float())[..., 0], len(sequences), width + 1)


def _value_head(width: int, seeds: Seeds) -> nn.Linear:
    """A linear value head that starts near 0, so that it does not dominate the first advantages."""
    with fork_torch_rng(seeds.derive("value-head")):
        head = nn.Linear(width, 1)
        nn.init.normal_(head.weight, std=0.01 * width**-0.5)
        nn.init.zeros_(head.bias)
    return head


def mask_illegal(
    logits_NV: torch.Tensor, rows_N: torch.Tensor | None, legal: list[list[np.ndarray | None]], width: int
) -> torch.Tensor:
    """Set the logits of tokens that were not legal to minus infinity."""
    legal_NV = torch.ones_like(logits_NV, dtype=torch.bool)
    for position, row in enumerate(range(len(logits_NV)) if rows_N is None else rows_N.tolist()):
        sequence, t = divmod(row, width)
        allowed = legal[sequence][t] if t < len(legal[sequence]) else None
        if allowed is not None:
            legal_NV[position] = False
            legal_NV[position, torch.from_numpy(allowed)] = True
    return logits_NV.masked_fill(~legal_NV, float("-inf"))


class ReferencePolicy:
    """Computes the log-probs of a rollout's tokens under fixed weights, for the KL penalty.

    By default these are the current weights of the policy: with an adapter, the base weights without a copy; otherwise
    a copy.

    Arguments:
        policy: the trained policy; its temperature applies to the reference as well.
        model: other weights, for example of a larger model.
    """

    def __init__(self, policy: Any, model: PreTrainedModel | None = None) -> None:
        self.policy, self._adapted = policy, None
        if model is None and hasattr(policy.model, "disable_adapter"):
            self._adapted = policy.model
        else:
            model = copy.deepcopy(policy.model) if model is None else model
            self.policy = policy.with_model(model.requires_grad_(False))

    def logprobs_BT(self, rollout: Rollout) -> torch.Tensor:
        with nullcontext() if self._adapted is None else self._adapted.disable_adapter():
            logprobs_BT: torch.Tensor = self.policy.logprobs_BT(rollout)
        return logprobs_BT


def apply_kl_penalty(rollout: Rollout, reference_BT: torch.Tensor, kl_coef: float) -> float:
    """Subtract the KL penalty of each token from its reward. Returns the mean divergence per response, in nats.

    The policy's log-probs are those at the time of sampling. If the reference equals the policy, the penalty is 0.
    """
    rollout.reference_BT = reference_BT
    divergence_BT = kl_k1(rollout.logprobs_BT, reference_BT) * rollout.mask_BT
    rollout.rewards_BT = rollout.rewards_BT - kl_coef * divergence_BT
    return float(divergence_BT.sum(-1).mean())
