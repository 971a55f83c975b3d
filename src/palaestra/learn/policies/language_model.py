"""A language model as a policy: it steps with a key-value cache per slot and is judged by whole sequences.

The log-prob of a token is the same number both times: the cache, the position ids and the masks say
exactly what one pass over the whole sequence says. That is the first thing that the tests hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from palaestra.core.errors import EnvError, ModelError
from palaestra.core.seeding import Seeds
from palaestra.engines.families import check_trainable, context_length, takes_slots
from palaestra.engines.kernels import suited
from palaestra.engines.sequences import SequenceStepper
from palaestra.engines.slots import SlotStepper, make_stepper
from palaestra.learn.kernels import chosen_logprobs_N
from palaestra.learn.policies.base import ActionEvaluation
from palaestra.learn.policies.lean_readers import lean_reader
from palaestra.learn.policies.readers import PlainReader, Reading, pack, pack_right, padded
from palaestra.learn.randomness import seeded_torch
from palaestra.learn.rollouts import Rollout, Selection, TokenInputs, select_all

MICROBATCH_LOGITS = 1 << 25
"""Logits that one pass of judging may hold: 128 MB in float32, and a few times that with gradients."""


class LanguageModelPolicy(nn.Module):
    """A causal language model that chooses tokens.

    Arguments:
        model: a causal language model of transformers, or peft's around one.
        critic: `None`, `"head"` (a value head on the model's own last layer), or a `LanguageModelCritic` with
            weights of its own.
        temperature: of the choice; the log-probs are those of the distribution that was sampled from.
        vocabulary: how many of the model's outputs are tokens; a model may have more rows than its
            tokenizer has tokens.
        seeds: of the value head's weights.
    """

    by_sequence = True

    def __init__(
        self,
        model: Any,
        critic: Literal["head"] | LanguageModelCritic | None = None,
        temperature: float = 1.0,
        vocabulary: int = 0,
        microbatch_size: int = 0,
        seeds: Seeds = Seeds(0),
    ) -> None:
        super().__init__()
        if temperature <= 0:
            raise EnvError(f"a policy that learns needs a temperature above 0; got {temperature}")
        check_trainable(model.config)
        self.model, self.temperature = model, temperature
        fuse_activations(model)
        config = model.config.get_text_config()
        self.rows = int(model.get_output_embeddings().weight.shape[0])
        self.vocabulary = vocabulary or self.rows
        if self.vocabulary > self.rows:
            raise ModelError(
                f"the tokenizer has {self.vocabulary} tokens; the model has {self.rows} outputs: they do not belong together"
            )
        self.context = context_length(model.config) or 1 << 30
        self.value_head: nn.Linear | None = None
        self.critic = critic if isinstance(critic, nn.Module) else None
        if critic == "head":
            self.value_head = value_head(int(config.hidden_size), seeds).to(model.device)
        self.has_critic = critic is not None
        self.microbatch_size = microbatch_size
        self._stepper: SlotStepper | SequenceStepper | None = None
        self._plain, self._lean, self._checked = PlainReader(model), lean_reader(model), False
        super().train(False)

    def train(self, mode: bool = True) -> LanguageModelPolicy:
        """Dropout stays off while learning as well.

        With it the log-probs of the update would not be those of the rollout: ratios would differ from 1 before
        anything was learned, and by numbers that belong to nobody's seed.
        """
        self.training = mode
        return self

    @property
    def device(self) -> torch.device:
        found: torch.device = self.model.device
        return found

    # Acting

    def begin(self, slots: int) -> None:
        """Forget all sequences; the next `act` starts `slots` new ones."""
        self.model.eval()
        if self._stepper is None or self._stepper.slots != slots:
            self._stepper = make_stepper(self.model, slots)
        self._stepper.clear()

    @torch.no_grad()
    def logits_SV(
        self,
        tokens_SL: np.ndarray,
        length_S: np.ndarray,
        fresh_S: np.ndarray,
        active_S: np.ndarray,
        waiting_S: np.ndarray | None = None,
    ) -> torch.Tensor:
        """The logits of the next token in each slot, over the vocabulary.

        What stands at slots that are not active, or wait, means nothing. A slot that waits is read no further in this
        call, and goes on in a later one; one that is not active is forgotten.
        """
        stepper = self._stepper
        assert stepper is not None, "call begin first"
        waiting_S = np.zeros_like(active_S) if waiting_S is None else waiting_S
        with suited():
            return self._next_SV(stepper, tokens_SL, length_S, fresh_S, active_S, waiting_S & active_S)

    def _next_SV(
        self,
        stepper: SlotStepper | SequenceStepper,
        tokens_SL: np.ndarray,
        length_S: np.ndarray,
        fresh_S: np.ndarray,
        active_S: np.ndarray,
        waiting_S: np.ndarray,
    ) -> torch.Tensor:
        stepper.rest(np.flatnonzero(~active_S).tolist())
        starting = np.flatnonzero(fresh_S & active_S & ~waiting_S).tolist()
        going = active_S & ~fresh_S & ~waiting_S
        logits_SV = None
        if going.any():
            last_S = torch.from_numpy(tokens_SL[np.arange(len(length_S)), np.maximum(length_S - 1, 0)]).to(self.device)
            logits_SV = stepper.step(last_S, starting, np.flatnonzero(waiting_S).tolist())
        if starting:
            logits_SV = stepper.start({s: tokens_SL[s, : length_S[s]].tolist() for s in starting}, logits_SV)
        assert logits_SV is not None, "no slot is active"
        return logits_SV[:, : self.vocabulary].float()

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
        """Choose the next token of each slot; returns tokens, log-probs and the entropies of the choices.

        Arguments:
            uniform_S: one random number from 0 to 1 a slot; it alone decides the choice.
            mask_SV: tokens that are legal.
            waiting_S: slots that choose nothing now and keep what they have read.
        """
        logits_SV = self.logits_SV(tokens_SL, length_S, fresh_S, active_S, waiting_S)
        chosen_S, logprobs_S, entropy_S = choose(
            logits_SV,
            torch.from_numpy(uniform_S).to(logits_SV.device),
            self.temperature,
            None if mask_SV is None else torch.from_numpy(mask_SV.astype(bool)).to(logits_SV.device),
        )
        choosing_S = active_S if waiting_S is None else active_S & ~waiting_S
        if not bool(torch.isfinite(logprobs_S[torch.from_numpy(choosing_S).to(logprobs_S.device)]).all()):
            raise ModelError("the policy's log-probs are not finite any more; lower the learning rate")
        return chosen_S.cpu().numpy(), logprobs_S.cpu().numpy(), entropy_S.cpu().numpy()

    # Learning

    def evaluate_actions(
        self, rollout: Rollout, selection: Selection, entropy: bool = False, values: bool = True
    ) -> ActionEvaluation:
        """Log-probs, entropies and values at the tokens of the selected sequences, `[sequences, width]`."""
        inputs: TokenInputs = rollout.inputs
        sequences = selection.index.tolist()
        valued = values and self.value_head is not None
        # Whoever wants whole distributions, or restricts them, needs logits; log-probs alone come with less.
        whole = entropy or bool(inputs.legal) or self._lean is None
        reach = inputs.reach(sequences, selection.width)
        reading = self._read(inputs, sequences, reach, hidden=valued or not whole, logits=whole)
        reading = reading.at_decisions(inputs, sequences, reach, selection.width)
        chosen_BR = padded([inputs.decisions(sequence) for sequence in sequences], selection.width).to(self.device)
        chosen_N = chosen_BR.flatten() if reading.rows_N is None else chosen_BR.flatten()[reading.rows_N]
        shape = (len(sequences), selection.width)
        entropy_BR = None
        if reading.logits_NV is None:
            assert reading.hidden_ND is not None
            output_VD = self.model.get_output_embeddings().weight[: self.vocabulary]
            logprobs_N = chosen_logprobs_N(reading.hidden_ND, output_VD, chosen_N, self.temperature)
        else:
            logits_NV = reading.logits_NV[:, : self.vocabulary].float()
            if self.temperature != 1.0:
                logits_NV = logits_NV / self.temperature
            if inputs.legal:
                legal = [inputs.legal[sequence] for sequence in sequences]
                logits_NV = _restrict(logits_NV, reading.rows_N, legal, selection.width)
            logprobs_N = -nn.functional.cross_entropy(logits_NV, chosen_N, reduction="none")
            if entropy:
                logp_NV = logits_NV.log_softmax(-1)
                entropy_N = -(logp_NV.exp() * logp_NV.masked_fill(logp_NV == float("-inf"), 0.0)).sum(-1)
                entropy_BR = reading.table(entropy_N, *shape)
        logprobs_BR = reading.table(logprobs_N, *shape)
        values_BR = None
        if self.value_head is not None and valued:
            assert reading.hidden_ND is not None
            values_BR = reading.table(self.value_head(reading.hidden_ND.float())[..., 0], *shape)
        elif values and self.critic is not None:
            values_BR = self.critic.values(inputs, sequences, selection.width)[:, :-1]
        # The rollout lies on the CPU; what is compared with it comes there, and gradients go back.
        return ActionEvaluation(
            logprobs_BR.cpu(),
            entropy_BR.cpu() if entropy_BR is not None else None,
            values_BR.cpu() if values_BR is not None else None,
        )

    @torch.no_grad()
    def values_BT(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        inputs: TokenInputs = rollout.inputs
        values_BT = torch.zeros_like(rollout.rewards_BT)
        next_BT = torch.zeros_like(rollout.rewards_BT)
        for selection in select_all(rollout, True, self.max_microbatch_size(rollout)):
            sequences, width = selection.index.tolist(), selection.width
            if self.value_head is not None:
                reach = inputs.reach(sequences, width)
                reading = self._read(inputs, sequences, reach, hidden=True, logits=False, behind=True)
                reading = reading.at_decisions(inputs, sequences, reach + 1, width + 1, behind=True)
                assert reading.hidden_ND is not None
                found_N = self.value_head(reading.hidden_ND.float())[..., 0]
                found_BR = reading.table(found_N, len(sequences), width + 1)
            elif self.critic is not None:
                found_BR = self.critic.values(inputs, sequences, width)
            else:
                raise EnvError("this algorithm needs a critic; give the policy critic='head' or a LanguageModelCritic")
            found_BR = found_BR.to(values_BT.device)
            values_BT[selection.index, :width] = found_BR[:, :-1]
            next_BT[selection.index, :width] = found_BR[:, 1:]
        return values_BT, next_BT

    @torch.no_grad()
    def logprobs_BT(self, rollout: Rollout) -> torch.Tensor:
        """The log-probs of all tokens under the weights of now, for a reference."""
        found_BT = torch.zeros_like(rollout.rewards_BT)
        self.model.eval()
        with suited():
            for selection in select_all(rollout, True, self.max_microbatch_size(rollout)):
                judged = self.evaluate_actions(rollout, selection, values=False)
                found_BT[selection.index, : selection.width] = judged.logprobs.to(found_BT.device)
        return found_BT * rollout.mask_BT

    @contextmanager
    def adapter_off(self) -> Iterator[None]:
        """The weights as they were before the adapter."""
        if not hasattr(self.model, "disable_adapter"):
            raise ModelError("this policy has no adapter to turn off; give the reference as a model of its own")
        with self.model.disable_adapter():
            yield

    def max_microbatch_size(self, rollout: Rollout) -> int:
        """The most sequences that one pass can take without holding too many logits."""
        if self.microbatch_size:
            return self.microbatch_size
        inputs: TokenInputs = rollout.inputs
        longest = inputs.reach(range(rollout.num_sequences), int(rollout.mask_BT.sum(-1).max()))
        return max(1, MICROBATCH_LOGITS // ((longest + 1) * self.rows))

    def parameter_groups(self, actor_rate: float, critic_rate: float) -> list[dict[str, object]]:
        groups: list[dict[str, object]] = [
            {"params": [p for p in self.model.parameters() if p.requires_grad], "lr": actor_rate}
        ]
        judge: nn.Module | None = self.value_head if self.value_head is not None else self.critic
        if judge is not None:
            groups.append({"params": [p for p in judge.parameters() if p.requires_grad], "lr": critic_rate})
        return groups

    # Inside

    def _read(
        self,
        inputs: TokenInputs,
        sequences: list[int],
        width: int,
        hidden: bool = False,
        logits: bool = True,
        behind: bool = False,
    ) -> Reading:
        """Before each token of the responses and, if `behind`, behind the last."""
        width += behind
        longest = max(
            len(inputs.prompts[sequence]) + min(len(inputs.responses[sequence]), width - 1) for sequence in sequences
        )
        if longest > self.context:
            raise ModelError(f"a sequence has {longest} tokens; the model reads {self.context}")
        if self._lean is None:
            return self._plain.read(inputs, sequences, width, hidden, logits)
        reading = self._lean.read(inputs, sequences, width, hidden or not self._checked, logits, behind)
        if not self._checked:
            # The first time both ways are gone; a model that only looks like a known shape keeps its own.
            self._checked = True
            with torch.no_grad():
                plain = self._plain.read(inputs, sequences, width, True, logits)
            assert plain.hidden_ND is not None and reading.hidden_ND is not None  # noqa: PT018
            if not torch.allclose(plain.hidden_ND[reading.rows_N], reading.hidden_ND, atol=1e-3, rtol=1e-3):
                self._lean = None
                return self._plain.read(inputs, sequences, width, hidden, logits)
        return reading


class LanguageModelCritic(nn.Module):
    """A critic with weights of its own: a language model's body and a value head."""

    def __init__(self, body: Any, width: int, seeds: Seeds = Seeds(0)) -> None:
        super().__init__()
        self.body = body
        self.head = value_head(width, seeds).to(body.device)
        self._lean = lean_reader(body)

    def values(self, inputs: TokenInputs, sequences: list[int], width: int) -> torch.Tensor:
        """The values before each decision, and behind the end of the response, `[sequences, width + 1]`."""
        reach = inputs.reach(sequences, width)
        if self._lean is not None:
            reading = self._lean.read(inputs, sequences, reach + 1, hidden=True, logits=False, behind=True)
            reading = reading.at_decisions(inputs, sequences, reach + 1, width + 1, behind=True)
            assert reading.hidden_ND is not None
            return reading.table(self.head(reading.hidden_ND)[..., 0], len(sequences), width + 1)
        device = self.body.device
        if takes_slots(self.body.config):
            ids_BL, mask_BL = (x.to(device) for x in pack(inputs, sequences, reach))
            hidden_BLD = self.body(
                input_ids=ids_BL,
                attention_mask=mask_BL,
                position_ids=(mask_BL.cumsum(-1) - 1).clamp(min=0),
                use_cache=False,
            ).last_hidden_state[:, -(reach + 1) :]
        else:
            ids_BL, place_BW = (x.to(device) for x in pack_right(inputs, sequences, reach + 1))
            hidden_BLD = self.body(input_ids=ids_BL).last_hidden_state
            hidden_BLD = hidden_BLD[torch.arange(len(sequences), device=device)[:, None], place_BW]
        reading = Reading(hidden_BLD.flatten(0, 1), None, None)
        reading = reading.at_decisions(inputs, sequences, reach + 1, width + 1, behind=True)
        assert reading.hidden_ND is not None
        return reading.table(self.head(reading.hidden_ND.float())[..., 0], len(sequences), width + 1)


def fuse_activations(model: nn.Module) -> None:
    """Let torch's fused kernel compute GPT-2's activation, which transformers spells out in eight operations."""
    from transformers.activations import NewGELUActivation

    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))


def value_head(width: int, seeds: Seeds) -> nn.Linear:
    """A linear value that starts near 0 everywhere, so that it does not drown the first advantages."""
    with seeded_torch(seeds.derive("value-head")):
        head = nn.Linear(width, 1)
        nn.init.normal_(head.weight, std=0.01 * width**-0.5)
        nn.init.zeros_(head.bias)
    return head


def choose(
    logits_SV: torch.Tensor, uniform_S: torch.Tensor, temperature: float = 1.0, legal_SV: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sample by inverting the cumulative distribution; returns choices, their log-probs, and entropies.

    One exponential a logit serves all three. A token that is not legal is never chosen.
    """
    if temperature != 1.0:
        logits_SV = logits_SV / temperature
    if legal_SV is not None:
        logits_SV = logits_SV.masked_fill(~legal_SV, float("-inf"))
    shifted_SV = logits_SV - logits_SV.amax(-1, keepdim=True)
    weight_SV = shifted_SV.exp()
    chosen_S, total_S = _draw(weight_SV, uniform_S.to(weight_SV.dtype))
    log_total_S = total_S.log()
    logprobs_S = shifted_SV.gather(-1, chosen_S[:, None])[:, 0] - log_total_S
    finite_SV = shifted_SV if legal_SV is None else shifted_SV.masked_fill(~legal_SV, 0.0)
    entropy_S = log_total_S - (weight_SV * finite_SV).sum(-1) / total_S
    return chosen_S, logprobs_S, entropy_S


BLOCK = 64


def _draw(weight_SV: torch.Tensor, uniform_S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the cumulative weight passes the uniform share of the whole; and the whole.

    First the block of tokens, then the token in it: adding up a whole vocabulary one by one would cost more
    than the rest of the choice.
    """
    count, width = weight_SV.shape
    blocks_SNK = nn.functional.pad(weight_SV, (0, -width % BLOCK)).view(count, -1, BLOCK)
    ends_SN = blocks_SNK.sum(-1).cumsum(-1)
    total_S = ends_SN[:, -1]
    # Just below the whole, so that rounding never lands behind the last token that has any weight.
    target_S1 = (uniform_S * (1 - 2**-22) * total_S)[:, None]
    block_S1 = torch.searchsorted(ends_SN, target_S1, right=True).clamp(max=ends_SN.shape[1] - 1)
    inside_SK = blocks_SNK.gather(1, block_S1[:, :, None].expand(-1, -1, BLOCK))[:, 0].cumsum(-1)
    before_S1 = ends_SN.gather(1, block_S1) - inside_SK[:, -1:]
    # The same sum in another order may differ in its last bit: stay within what has weight in this block.
    left_S1 = torch.minimum((target_S1 - before_S1).clamp(min=0.0), inside_SK[:, -1:] * (1 - 2**-22))
    place_S1 = torch.searchsorted(inside_SK, left_S1, right=True)
    return (block_S1 * BLOCK + place_S1)[:, 0].clamp(max=width - 1), total_S


def _restrict(
    logits_NV: torch.Tensor, rows_N: torch.Tensor | None, legal: list[list[np.ndarray | None]], width: int
) -> torch.Tensor:
    """Logits with nothing left of the tokens that were not legal."""
    legal_NV = torch.ones_like(logits_NV, dtype=torch.bool)
    for at, row in enumerate(range(len(logits_NV)) if rows_N is None else rows_N.tolist()):
        sequence, t = divmod(row, width)
        allowed = legal[sequence][t] if t < len(legal[sequence]) else None
        if allowed is not None:
            legal_NV[at] = False
            legal_NV[at, torch.from_numpy(allowed)] = True
    return logits_NV.masked_fill(~legal_NV, float("-inf"))
