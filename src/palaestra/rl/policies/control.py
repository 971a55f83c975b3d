"""Policies of classic environments: an MLP over the observation, or a transformer over the history of observations.

Both are a `ControlPolicy` with different networks, and so is the policy for images in `convolutional.py`: all of them work
with every algorithm and every action space. Action distributions are plain functions of a network's output: `torch.distributions` would give the same results, but its
overhead is larger than the time of small networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Self

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.func import functional_call, vmap

from palaestra.core.errors import EnvError
from palaestra.core.seeding import Seeds
from palaestra.envs.base import GymSpace
from palaestra.rl.optimizers import fork_torch_rng
from palaestra.rl.rollouts import ActionEvaluation, ControlInputs, Rollout, Selection

MAX_IMAGES = 4096
"""Maximum number of observations in one pass of a policy with a trunk. For the backward pass, 0.2 MB of each 84 x 84 image
is kept."""


_UNBOUNDED = 2.0**31
"""A `Box` of this size counts as unbounded: its bounds are the limits of a data type, not a scale of the actions."""


class ControlPolicy(nn.Module):
    """An actor and a critic for a classic environment.

    Arguments:
        observation_space, action_space: the spaces of a single environment.
        actor, critic: networks from the policy's inputs to the head's outputs and to one value.
        trunk: a network that actor and critic share: they receive its outputs, and it receives the observations as they
            are, for example images in 8 bits; those of a Dict or Tuple as features. It is trained with the actor's learning
            rate.
        window: number of observations that the networks receive; 0 means only the current one, without a time axis.
        normalise: normalise observations by their running mean and standard deviation.
        scale_actions: whether the outputs -1 and 1 of the actor are the bounds of a bounded `Box`; see `make_action_head`.

    Networks and rollouts are on the policy's `device`; `to` moves them. The statistics for the normalisation stay on the CPU:
    an observation is normalised there and then copied to the device.
    """

    by_sequence = False
    has_critic = True
    microbatch_size = 0
    """Maximum number of sequences in one pass with gradients; 0 derives it from the length of the sequences."""
    seen: torch.Tensor
    mean_F: torch.Tensor
    square_F: torch.Tensor

    def __init__(
        self,
        observation_space: GymSpace,
        action_space: GymSpace,
        actor: nn.Module,
        critic: nn.Module | None,
        window: int = 0,
        normalise: bool = False,
        trunk: nn.Module | None = None,
        scale_actions: bool = True,
    ) -> None:
        super().__init__()
        self.observation_space, self.head = observation_space, make_action_head(action_space, scale_actions)
        self.trunk, self.actor, self.critic = trunk, actor, critic
        self.has_critic = critic is not None
        self.window, self.normalise = window, normalise
        self.features = 0 if trunk is not None else count_features(observation_space)
        self.device = _find_device(actor)
        """The device of the networks. Stored, because it is needed in every step."""
        log_std_O = torch.zeros(self.head.outputs, device=self.device)
        self.log_std_O = nn.Parameter(log_std_O) if self.head.continuous else None
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean_F", torch.zeros(self.features, dtype=torch.float64))
        self.register_buffer("square_F", torch.ones(self.features, dtype=torch.float64))
        self.memory: torch.Tensor | None = None
        """The windows of all slots; `None` before the first observation."""
        self.candidates: Mapping[str, torch.Tensor] = {}
        """Weights of several actors by name, which `act` uses in turn; empty: the actor's own."""
        self._predicted: torch.Tensor | None = None
        """The last actions of `predict`, which a policy with a window reads."""

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        statistics, self._buffers = self._buffers, {}
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            self._buffers = statistics
        self.device = _find_device(self.actor)
        return self

    def encode_observation(
        self, observations: Any, fresh_N: np.ndarray, last_actions: torch.Tensor | None
    ) -> torch.Tensor:
        """The networks' input on their device: the observation or its features, or the window of features and actions so far.

        Arguments:
            fresh_N: slots whose episode has just begun; their window is cleared.
            last_actions: the actions of the previous step; `None` at the start.
        """
        row_NF = self._row(observations, fresh_N, last_actions, update=self.training)
        if not self.window:
            return row_NF
        if self.memory is None or self.memory.shape[0] != len(row_NF):
            self.memory = row_NF.new_zeros(len(row_NF), self.window, row_NF.shape[-1])
        memory_NWF = torch.cat([self.memory[:, 1:], row_NF[:, None]], 1)
        memory_NWF[torch.from_numpy(fresh_N), :-1] = 0.0
        self.memory = memory_NWF
        return memory_NWF

    def encode_final_observation(self, observation: Any, slot: int, last_actions: torch.Tensor) -> torch.Tensor:
        """The networks' input for the last observation of an episode whose slot has already been reset."""
        fresh = np.zeros(1, dtype=bool)
        row_1F = self._row(_add_axis(observation), fresh, last_actions[slot : slot + 1], update=False)
        if not self.window:
            return row_1F[0]
        assert self.memory is not None
        return torch.cat([self.memory[slot, 1:], row_1F])

    def _row(
        self, observations: Any, fresh_N: np.ndarray, last_actions: torch.Tensor | None, update: bool
    ) -> torch.Tensor:
        if self.trunk is not None and isinstance(self.observation_space, gymnasium.spaces.Box):
            # Copy, because an environment may write its next observation into the same array.
            return torch.from_numpy(np.array(observations)).to(self.device)
        features_NF = to_features(self.observation_space, observations)
        if self.normalise:
            if update:
                self._update_statistics(features_NF)
            features_NF = self._normalize_features(features_NF)
        features_NF = features_NF.to(self.device)
        if not self.window:
            return features_NF
        action_NA = self._action_features(last_actions, len(features_NF))
        action_NA[torch.from_numpy(fresh_N)] = 0.0
        return torch.cat([features_NF, action_NA, features_NF.new_ones(len(features_NF), 1)], -1)

    @torch.no_grad()
    def act(self, inputs_NF: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions `[N, parts]` and their log-probs."""
        return self.head.sample(self._play_candidates(self._read(inputs_NF)), self.log_std_O, generator)

    def _play_candidates(self, inputs_NF: torch.Tensor) -> torch.Tensor:
        """The actor's outputs; with candidates those of each slot's own, in turn."""
        if not self.candidates:
            outputs_NO: torch.Tensor = self.actor(inputs_NF)
            return outputs_NO
        count = len(next(iter(self.candidates.values())))
        inputs_KGF = inputs_NF.view(-1, count, *inputs_NF.shape[1:]).transpose(0, 1)
        outputs_KGO: torch.Tensor = vmap(partial(functional_call, self.actor))(self.candidates, inputs_KGF)
        return outputs_KGO.transpose(0, 1).flatten(0, 1)

    @torch.no_grad()
    def act_greedily(self, inputs_NF: torch.Tensor) -> torch.Tensor:
        return self.head.mode(self.actor(self._read(inputs_NF)))

    def predict(self, observation: Any, starts: bool | np.ndarray = False) -> np.ndarray:
        """The most likely action for an observation, or the actions for a batch of a vector environment.

        Normalization, scaling and clipping are those of the training.

        Arguments:
            starts: whether the episode has just begun, one value per environment for a batch. Only the policy
                `transformer` reads it.

        Example:
            >>> policy = load_policy("runs/pendulum")                        # doctest: +SKIP
            >>> observation, _ = env.reset(seed=0)                           # doctest: +SKIP
            >>> env.step(policy.predict(observation))                        # doctest: +SKIP
        """
        first = observation
        while isinstance(first, (Mapping, tuple)):
            first = next(iter(first.values() if isinstance(first, Mapping) else first))
        single = np.shape(first) == list_parts(self.observation_space)[0].shape
        observations, count = (_add_axis(observation), 1) if single else (observation, len(first))
        starts_N = np.broadcast_to(np.asarray(starts, dtype=bool), (count,)).copy()
        last = self._predicted if self._predicted is not None and len(self._predicted) == count else None
        training = self.training
        self.eval()
        try:
            self._predicted = self.act_greedily(self.encode_observation(observations, starts_N, last))
        finally:
            self.train(training)
        actions: np.ndarray = self.head.to_environment(self._predicted)
        return actions[0] if single else actions

    def evaluate_actions(
        self, rollout: Rollout, selection: Selection, entropy: bool = False, values: bool = True
    ) -> ActionEvaluation:
        inputs: ControlInputs = rollout.inputs
        seen = selection.take(inputs.observations_BTF)
        actions = selection.take(inputs.actions_BT)
        shape = actions.shape[:-1]
        if selection.by_sequence:
            seen, actions = seen.flatten(0, 1), actions.flatten(0, 1)
        seen = self._read(seen)
        logprobs, entropies = self.head.evaluate_actions(self.actor(seen), self.log_std_O, actions)
        expected = self.critic(seen)[:, 0] if values and self.critic is not None else None
        return ActionEvaluation(
            logprobs.view(shape), entropies.view(shape), expected.view(shape) if expected is not None else None
        )

    def max_microbatch_size(self, rollout: Rollout) -> int:
        if self.microbatch_size:
            return self.microbatch_size
        if self.trunk is None:
            return 1 << 30  # The networks are small: a minibatch is never split.
        return max(1, MAX_IMAGES // rollout.mask_BT.shape[1])

    @torch.no_grad()
    def values_BT(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        if self.critic is None:
            raise EnvError("this algorithm needs a critic; the policy has no critic")
        inputs: ControlInputs = rollout.inputs
        seen = inputs.observations_BTF
        values_BT = self._values(seen.flatten(0, 1)).view(seen.shape[:2])
        next_BT = torch.zeros_like(values_BT)
        next_BT[:, :-1] = values_BT[:, 1:]
        if inputs.last_BF is not None:
            next_BT[:, -1] = self._values(inputs.last_BF)
        if inputs.finals:  # The slot was reset in the same step; use the last state of the old episode.
            places = list(inputs.finals)
            finals = self._values(torch.stack([inputs.finals[place] for place in places]))
            next_BT[[sequence for sequence, _ in places], [t for _, t in places]] = finals
        return values_BT, next_BT

    def _values(self, inputs_NF: torch.Tensor) -> torch.Tensor:
        assert self.critic is not None
        size = len(inputs_NF) if self.trunk is None else MAX_IMAGES
        return torch.cat([self.critic(self._read(part))[:, 0] for part in torch.split(inputs_NF, size)])

    def _read(self, inputs_NF: torch.Tensor) -> torch.Tensor:
        """The inputs of actor and critic."""
        hidden_NF: torch.Tensor = inputs_NF if self.trunk is None else self.trunk(inputs_NF)
        return hidden_NF

    def parameter_groups(self, learning_rate: float, critic_learning_rate: float) -> list[dict[str, object]]:
        acting = [*self.actor.parameters(), *([self.log_std_O] if self.log_std_O is not None else [])]
        if self.trunk is not None:
            acting = [*self.trunk.parameters(), *acting]
        groups: list[dict[str, object]] = [{"params": acting, "lr": learning_rate}]
        if self.critic is not None:
            groups.append({"params": list(self.critic.parameters()), "lr": critic_learning_rate})
        return groups

    def _update_statistics(self, features_NF: torch.Tensor) -> None:
        batch = features_NF.double()
        self.seen += len(batch)
        fraction = len(batch) / float(self.seen)
        self.mean_F += fraction * (batch.mean(0) - self.mean_F)
        self.square_F += fraction * (batch.square().mean(0) - self.square_F)

    def _normalize_features(self, features_NF: torch.Tensor) -> torch.Tensor:
        deviation_F = (self.square_F - self.mean_F.square()).clamp(min=1e-8).sqrt()
        return ((features_NF - self.mean_F) / deviation_F).clamp(-10, 10).float()

    def _action_features(self, actions: torch.Tensor | None, count: int) -> torch.Tensor:
        if actions is None:
            return torch.zeros(count, self.head.outputs, device=self.device)
        if self.head.continuous:
            return actions.clone()
        return torch.cat([nn.functional.one_hot(actions[:, k], n).float() for k, n in enumerate(self.head.parts)], -1)


def _find_device(network: nn.Module) -> torch.device:
    return next((parameter.device for parameter in network.parameters()), torch.device("cpu"))


_ACTIVATIONS: Mapping[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def mlp(sizes: Sequence[int], last_gain: float, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with activations between them and orthogonal initial weights, which PPO needs."""
    layers: list[nn.Module] = []
    for k, (a, b) in enumerate(pairwise(sizes)):
        linear = nn.Linear(a, b)
        last = k == len(sizes) - 2
        nn.init.orthogonal_(linear.weight, last_gain if last else 2**0.5)
        nn.init.zeros_(linear.bias)
        layers += [linear] if last else [linear, activation()]
    return nn.Sequential(*layers)


def mlp_policy(
    observation_space: GymSpace,
    action_space: GymSpace,
    hidden: Sequence[int] = (64, 64),
    seeds: Seeds = Seeds(0),
    normalise: bool = False,
    activation: str = "relu",
    scale_actions: bool = True,
) -> ControlPolicy:
    """An MLP for the actor and one for the critic.

    Arguments:
        hidden: widths of the hidden layers.
        normalise: normalise observations by their running mean and standard deviation.
        activation: `"relu"`, or `"tanh"`, which is bounded in unseen states. With sparse rewards a critic that
            extrapolates drives the policy away from new states.
    """
    features, head = count_features(observation_space), make_action_head(action_space)
    layer_class = _ACTIVATIONS[activation]
    with fork_torch_rng(seeds.derive("policy")):
        actor = mlp([features, *hidden, head.outputs], 0.01, layer_class)
        critic = mlp([features, *hidden, 1], 1.0, layer_class)
    return ControlPolicy(
        observation_space, action_space, actor, critic, normalise=normalise, scale_actions=scale_actions
    )


def history_policy(
    observation_space: GymSpace,
    action_space: GymSpace,
    window: int = 8,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    seeds: Seeds = Seeds(0),
    normalise: bool = False,
    scale_actions: bool = True,
) -> ControlPolicy:
    """A transformer over the last `window` observations and actions for the actor, and one for the critic."""
    features, head = count_features(observation_space), make_action_head(action_space)
    inputs = features + head.outputs + 1
    with fork_torch_rng(seeds.derive("policy")):
        actor = _HistoryTransformer(inputs, window, width, layers, heads, head.outputs, 0.01)
        critic = _HistoryTransformer(inputs, window, width, layers, heads, 1, 1.0)
    return ControlPolicy(observation_space, action_space, actor, critic, window, normalise, scale_actions=scale_actions)


class _HistoryTransformer(nn.Module):
    """A causal transformer over a window of steps; its output is that of the last step.

    The last feature of a step is 1 if the step belongs to the episode. All other steps are masked.
    """

    def __init__(
        self, inputs: int, window: int, width: int, layers: int, heads: int, outputs: int, last_gain: float
    ) -> None:
        super().__init__()
        self.embed, self.heads = nn.Linear(inputs, width), heads
        self.place_WD = nn.Parameter(0.02 * torch.randn(window, width))
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, outputs)
        nn.init.orthogonal_(self.out.weight, last_gain)
        nn.init.zeros_(self.out.bias)

    def forward(self, steps_BWF: torch.Tensor) -> torch.Tensor:
        is_step_BW = steps_BWF[..., -1] > 0
        hidden_BWD = self.embed(steps_BWF) + self.place_WD
        for k, block in enumerate(self.blocks):
            # The last block computes only the last step.
            hidden_BWD = block(hidden_BWD, is_step_BW, last_only=k == len(self.blocks) - 1)
        result: torch.Tensor = self.out(self.norm(hidden_BWD[:, -1]))
        return result


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key_value, self.merge = (
            nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        )  # fmt: skip
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, hidden_BWD: torch.Tensor, is_step_BW: torch.Tensor, last_only: bool) -> torch.Tensor:
        count, window, width = hidden_BWD.shape
        queried = hidden_BWD[:, -1:] if last_only else hidden_BWD
        normed_BWD = self.norm1(hidden_BWD)

        def split(x: torch.Tensor) -> torch.Tensor:
            return x.view(count, -1, self.heads, width // self.heads).transpose(1, 2)

        key, value = self.key_value(normed_BWD).chunk(2, -1)
        query = self.query(normed_BWD[:, -1:] if last_only else normed_BWD)
        mask = is_step_BW[:, None, None].expand(-1, 1, queried.shape[1], -1)
        if not last_only:
            causal_WW = torch.ones(window, window, dtype=torch.bool, device=mask.device).tril()
            # A step before the episode attends to itself: a row without keys would give NaN.
            itself_WW = torch.eye(window, dtype=torch.bool, device=mask.device)
            mask = (mask & causal_WW) | itself_WW
        mixed = nn.functional.scaled_dot_product_attention(split(query), split(key), split(value), attn_mask=mask)
        queried = queried + self.merge(mixed.transpose(1, 2).reshape(count, -1, width))
        result: torch.Tensor = queried + self.feed(self.norm2(queried))
        return result


@dataclass(frozen=True, slots=True)
class ActionHead:
    """Maps a network's output to actions of a space.

    Arguments:
        outputs: size of the network's output.
        parts: sizes of the discrete parts; empty for continuous actions.
        shape: the shape of one action.
        center, half_range: the environment's action is `center + half_range * action` for a continuous action.
    """

    space: GymSpace
    outputs: int
    parts: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    center: np.ndarray | float = 0.0
    half_range: np.ndarray | float = 1.0

    @property
    def continuous(self) -> bool:
        return not self.parts

    def sample(
        self, output_BO: torch.Tensor, log_std_O: torch.Tensor | None, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions `[B, parts]` and their log-probs.

        The random numbers are drawn on the generator's device, so that they do not depend on that of the networks.
        """
        if self.continuous:
            assert log_std_O is not None
            noise_BO = torch.randn(output_BO.shape, generator=generator, device=generator.device).to(output_BO.device)
            actions_BA = output_BO + noise_BO * log_std_O.exp()
            return actions_BA, _normal_logprobs(noise_BO, log_std_O)
        chosen, logprobs = [], torch.zeros(len(output_BO), device=output_BO.device)
        for logits in torch.split(output_BO, list(self.parts), -1):
            logp = logits.log_softmax(-1)
            uniform = torch.rand(len(logits), 1, generator=generator, device=generator.device).to(logits.device)
            cumulative = logp.exp().cumsum(-1)
            action = (cumulative[:, :-1] <= uniform * cumulative[:, -1:]).sum(-1)
            chosen.append(action)
            logprobs = logprobs + logp.gather(-1, action[:, None])[:, 0]
        return torch.stack(chosen, -1), logprobs

    def mode(self, output_BO: torch.Tensor) -> torch.Tensor:
        """The most likely actions."""
        if self.continuous:
            return output_BO
        return torch.stack([logits.argmax(-1) for logits in torch.split(output_BO, list(self.parts), -1)], -1)

    def evaluate_actions(
        self, output_BO: torch.Tensor, log_std_O: torch.Tensor | None, actions_BA: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs of actions, and entropies."""
        if self.continuous:
            assert log_std_O is not None
            noise_BO = (actions_BA - output_BO) * (-log_std_O).exp()
            entropy = (log_std_O + 0.5 * math.log(2 * math.pi * math.e)).sum()
            return _normal_logprobs(noise_BO, log_std_O), entropy.expand(len(output_BO))
        logprobs: torch.Tensor | float = 0.0
        entropies: torch.Tensor | float = 0.0
        for part, logits in enumerate(torch.split(output_BO, list(self.parts), -1)):
            logp = logits.log_softmax(-1)
            logprobs = logprobs + logp.gather(-1, actions_BA[:, part : part + 1])[:, 0]
            entropies = entropies - (logp.exp() * logp).sum(-1)
        assert isinstance(logprobs, torch.Tensor) and isinstance(entropies, torch.Tensor)  # noqa: PT018
        return logprobs, entropies

    def to_environment(self, actions_BA: torch.Tensor) -> np.ndarray:
        """Actions for the vector environment. Continuous ones are scaled, and clipped to the bounds of the space."""
        values = actions_BA.cpu().numpy().reshape(-1, *self.shape)
        if isinstance(self.space, gymnasium.spaces.Box):
            values = self.center + self.half_range * values
            if self.space.dtype is not None and self.space.dtype.kind != "f":
                values = np.rint(values)
            values = np.clip(values, self.space.low, self.space.high)
        else:
            values = values + getattr(self.space, "start", 0)
        return np.asarray(values, dtype=self.space.dtype)


def make_action_head(space: GymSpace, scale: bool = True) -> ActionHead:
    """Make the head for an action space.

    Arguments:
        scale: whether -1 and 1 are the bounds of a `Box`, where it has both, so that the first policy, a standard normal
            distribution, reaches all of it. Integers get equal intervals. Log-probs are those of the unscaled actions; a
            fixed scale does not change their ratios.

    Raises:
        EnvError: the space is not Discrete, MultiDiscrete, MultiBinary or Box.
    """
    if isinstance(space, gymnasium.spaces.Box):
        center, half_range = _find_scale(space) if scale else (0.0, 1.0)
        return ActionHead(space, int(np.prod(space.shape)), (), space.shape, center, half_range)
    if isinstance(space, gymnasium.spaces.Discrete):
        parts: tuple[int, ...] = (int(space.n),)
    elif isinstance(space, gymnasium.spaces.MultiDiscrete):
        parts = tuple(int(n) for n in space.nvec.flatten())
    elif isinstance(space, gymnasium.spaces.MultiBinary):
        parts = (2,) * int(np.prod(space.shape))
    else:
        raise EnvError(f"expected a Discrete, MultiDiscrete, MultiBinary or Box action space; got {space}")
    return ActionHead(space, sum(parts), parts, space.shape or ())


def _find_scale(space: gymnasium.spaces.Box) -> tuple[Any, Any]:
    """The center and the half range of a `Box`; 0 and 1 where it is not bounded."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    if space.dtype is not None and space.dtype.kind != "f":
        low, high = low - 0.5, high + 0.5
    bounded = space.bounded_below & space.bounded_above & (high - low < _UNBOUNDED)
    low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
    return (low + high) / 2, (high - low) / 2


def list_parts(space: GymSpace) -> list[GymSpace]:
    """The spaces of the parts of a Dict or Tuple at any depth, in order; another space as it is."""
    if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        children = space.spaces.values() if isinstance(space, gymnasium.spaces.Dict) else space.spaces
        return [part for child in children for part in list_parts(child)]
    return [space]


def count_features(space: GymSpace) -> int:
    """The number of features of an observation.

    Raises:
        EnvError: the space is not Box, MultiBinary, MultiDiscrete, Discrete, or a Dict or Tuple of them.
    """
    if isinstance(space, (gymnasium.spaces.Dict, gymnasium.spaces.Tuple)):
        return sum(count_features(part) for part in list_parts(space))
    if isinstance(space, (gymnasium.spaces.Box, gymnasium.spaces.MultiBinary)):
        return int(np.prod(space.shape))
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return int(space.nvec.sum())
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(space.n)
    raise EnvError(
        f"expected a Box, MultiBinary, MultiDiscrete or Discrete observation space, or a Dict or Tuple of them; got {space}; "
        f"wrap the environment, for example in gymnasium.wrappers.TransformObservation"
    )


def to_features(space: GymSpace, observations: Any) -> torch.Tensor:
    """A batch of observations as float features `[N, F]`. Parts are in the order of `list_parts`."""
    if isinstance(space, gymnasium.spaces.Dict):
        return torch.cat([to_features(part, observations[name]) for name, part in space.spaces.items()], -1)
    if isinstance(space, gymnasium.spaces.Tuple):
        return torch.cat([to_features(part, observations[k]) for k, part in enumerate(space.spaces)], -1)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        index_NP = torch.as_tensor(np.asarray(observations) - space.start, dtype=torch.long).flatten(1)
        sizes = space.nvec.flatten().tolist()
        parts = [nn.functional.one_hot(index_NP[:, k], size) for k, size in enumerate(sizes)]
        return torch.cat(parts, -1).float()
    if isinstance(space, gymnasium.spaces.Discrete):
        index = torch.as_tensor(np.asarray(observations) - space.start, dtype=torch.long)
        return torch.nn.functional.one_hot(index, int(space.n)).float()
    array = np.asarray(observations)
    return torch.from_numpy(array.reshape(len(array), -1).astype(np.float32))


def _add_axis(observation: Any) -> Any:
    """A batch of one observation."""
    if isinstance(observation, Mapping):
        return {name: _add_axis(part) for name, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_add_axis(part) for part in observation)
    return np.asarray(observation)[None]


def _normal_logprobs(noise_BO: torch.Tensor, log_std_O: torch.Tensor) -> torch.Tensor:
    return (-0.5 * noise_BO.square() - log_std_O - 0.5 * math.log(2 * math.pi)).sum(-1)
