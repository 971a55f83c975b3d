"""The networks of Gymformer, with its names and arguments, for `train_agent`. The rest of Palaestra uses policies."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from palaestra.core.errors import ModelError
from palaestra.core.seeding import Seeds
from palaestra.models import registry as models
from palaestra.rl.optimizers import fork_torch_rng
from palaestra.rl.policies.control import mlp
from palaestra.rl.policies.language_model import LanguageModelCritic


class _MLPNetwork(nn.Module):
    def __init__(self, name: str, sizes: list[int], gain: float, seed: int) -> None:
        super().__init__()
        with fork_torch_rng(Seeds(seed).derive(name)):
            self.network = mlp(sizes, gain)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.network(observations)
        return result


class MLPActorNetwork(_MLPNetwork):
    """An MLP from observations to actions.

    Arguments:
        inputs: size of an observation.
        hidden: width of the two hidden layers.
        outputs: number of discrete actions, or size of a continuous action.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, seed: int = 0) -> None:
        super().__init__("actor", [inputs, hidden, hidden, outputs], 0.01, seed)


class MLPCriticNetwork(_MLPNetwork):
    """An MLP from observations to a value.

    Arguments:
        inputs: size of an observation.
        hidden: width of the two hidden layers.
    """

    def __init__(self, inputs: int, hidden: int, seed: int = 0) -> None:
        super().__init__("critic", [inputs, hidden, hidden, 1], 1.0, seed)


class LMActorNetwork(nn.Module):
    """A causal language model that chooses tokens.

    Arguments:
        model_name: a registered name, a folder with a transformers checkpoint, or a hub id.
        pad_token_id: the tokenizer's padding token; only needed by `forward` without a mask.
        device: for example `"cuda"`; empty means a GPU if there is one.
    """

    def __init__(self, model_name: str = "nano", pad_token_id: int | None = None, device: str = "") -> None:
        super().__init__()
        loaded = models.load(model_name, device=device)
        self.model, self.tokenizer, self.model_name = loaded.weights, loaded.tokenizer, model_name
        self.pad_token_id = pad_token_id if pad_token_id is not None else loaded.tokenizer.pad_token_id

    def forward(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor | None = None) -> torch.Tensor:
        """The logits of the next token, `[batch, vocabulary]`. Padding may be on either side.

        Without a mask, leading and trailing pad tokens count as padding. Pass a mask if they are tokens of the text.
        """
        inputs = _make_inputs(ids_BL, mask_BL, self.pad_token_id)
        return _select_last(self.model(**inputs).logits, inputs["attention_mask"])


class LMCriticNetwork(LanguageModelCritic):
    """A language model's body with a value head.

    Arguments:
        model_name: a registered name, a folder with a transformers checkpoint, or a hub id.
        pad_token_id: the tokenizer's padding token; only needed by `forward` without a mask.
        device: for example `"cuda"`; empty means a GPU if there is one.
    """

    def __init__(
        self, model_name: str = "nano", pad_token_id: int | None = None, device: str = "", seed: int = 0
    ) -> None:
        loaded = models.load(model_name, device=device)
        body = loaded.weights.base_model
        super().__init__(body, int(body.config.get_text_config().hidden_size), Seeds(seed))
        self.model_name = model_name
        self.pad_token_id = pad_token_id if pad_token_id is not None else loaded.tokenizer.pad_token_id

    def forward(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor | None = None) -> torch.Tensor:
        """The value after the last token of each row, `[batch]`."""
        inputs = _make_inputs(ids_BL, mask_BL, self.pad_token_id)
        hidden_BLD = self.body(**inputs, use_cache=False).last_hidden_state
        result: torch.Tensor = self.head(_select_last(hidden_BLD, inputs["attention_mask"]).float())[:, 0]
        return result


def load_into(module: nn.Module, weights: Mapping[str, torch.Tensor], what: str) -> None:
    """Copy saved weights into a network.

    Raises:
        ModelError: the weights belong to a different network.
    """
    try:
        module.load_state_dict({name: weights[name] for name in module.state_dict() if name in weights})
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise ModelError(f"the saved {what} does not belong to this {type(module).__name__}: {reason}") from error


def _make_inputs(ids_BL: torch.Tensor, mask_BL: torch.Tensor | None, pad: int | None) -> dict[str, torch.Tensor]:
    """The inputs of a transformers model. Without a mask, leading and trailing pad tokens are padding."""
    if mask_BL is None:
        mask_BL = _attention_mask(ids_BL, pad)
    return {"input_ids": ids_BL, "attention_mask": mask_BL, "position_ids": (mask_BL.cumsum(-1) - 1).clamp(min=0)}


def _select_last(values_BLX: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
    """The values at the last token of each row."""
    last_B = mask_BL.shape[1] - 1 - mask_BL.flip(-1).argmax(-1)
    return values_BLX[torch.arange(len(last_B), device=last_B.device), last_B]


def _attention_mask(ids_BL: torch.Tensor, pad: int | None) -> torch.Tensor:
    """1 for tokens, 0 for padding: pad tokens at the start and the end of a row."""
    if pad is None:
        return torch.ones_like(ids_BL)
    token_BL: torch.Tensor = (ids_BL != pad).long()
    seen_BL: torch.Tensor
    seen_BL, left_BL = token_BL.cumsum(-1) > 0, token_BL.flip(-1).cumsum(-1).flip(-1) > 0
    return (seen_BL & left_BL).long()
