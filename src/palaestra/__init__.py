"""Palaestra: language models learn inside Gymnasium environments, at three time-scales.

Importing this package registers the environments with Gymnasium and loads neither torch nor transformers.
The names below are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import palaestra.envs  # noqa: F401  (registers the environments)
from palaestra.version import __version__

if TYPE_CHECKING:
    from palaestra.envs.lesson import LessonEnv
    from palaestra.envs.token import TokenEnv, TokenVectorEnv
    from palaestra.envs.turn import TurnEnv, TurnVectorEnv
    from palaestra.learn.grpo import GRPOConfig
    from palaestra.learn.policies.networks import LMActorNetwork, LMCriticNetwork, MLPActorNetwork, MLPCriticNetwork
    from palaestra.learn.ppo import PPOConfig
    from palaestra.learn.reinforce import REINFORCEConfig
    from palaestra.learn.reward_model import RewardModel, load_reward_model
    from palaestra.learn.rloo import RLOOConfig
    from palaestra.recipes.compat.run_episode import run_episode
    from palaestra.recipes.compat.train_agent import load_ppo_agent, train_agent
    from palaestra.recipes.evaluate.compare import compare
    from palaestra.recipes.evaluate.recipe import evaluate
    from palaestra.recipes.evaluate.settings import EvaluateSettings
    from palaestra.recipes.research.recipe import research
    from palaestra.recipes.research.settings import ResearchSettings
    from palaestra.recipes.resume import load_policy, resume
    from palaestra.recipes.teach.recipe import teach
    from palaestra.recipes.teach.settings import TeachSettings
    from palaestra.recipes.train.pretrain import PretrainSettings, pretrain
    from palaestra.recipes.train.recipe import train
    from palaestra.recipes.train.reward_model import RewardSettings, train_reward
    from palaestra.recipes.train.settings import TrainSettings
    from palaestra.report import write_report as report
    from palaestra.report.notebook import view
    from palaestra.tasks.base import make_task
    from palaestra.teachers.base import make_teacher

__all__ = [
    "EvaluateSettings",
    "GRPOConfig",
    "LMActorNetwork",
    "LMCriticNetwork",
    "LessonEnv",
    "MLPActorNetwork",
    "MLPCriticNetwork",
    "PPOConfig",
    "PretrainSettings",
    "REINFORCEConfig",
    "RLOOConfig",
    "ResearchSettings",
    "RewardModel",
    "RewardSettings",
    "TeachSettings",
    "TokenEnv",
    "TokenVectorEnv",
    "TrainSettings",
    "TurnEnv",
    "TurnVectorEnv",
    "__version__",
    "compare",
    "evaluate",
    "load_policy",
    "load_ppo_agent",
    "load_reward_model",
    "make_task",
    "make_teacher",
    "pretrain",
    "report",
    "research",
    "resume",
    "run_episode",
    "teach",
    "train",
    "train_agent",
    "train_reward",
    "view",
]

_HOMES = {
    "EvaluateSettings": "palaestra.recipes.evaluate.settings",
    "GRPOConfig": "palaestra.learn.grpo",
    "LMActorNetwork": "palaestra.learn.policies.networks",
    "LMCriticNetwork": "palaestra.learn.policies.networks",
    "LessonEnv": "palaestra.envs.lesson",
    "MLPActorNetwork": "palaestra.learn.policies.networks",
    "MLPCriticNetwork": "palaestra.learn.policies.networks",
    "PPOConfig": "palaestra.learn.ppo",
    "PretrainSettings": "palaestra.recipes.train.pretrain",
    "REINFORCEConfig": "palaestra.learn.reinforce",
    "RLOOConfig": "palaestra.learn.rloo",
    "ResearchSettings": "palaestra.recipes.research.settings",
    "RewardModel": "palaestra.learn.reward_model",
    "RewardSettings": "palaestra.recipes.train.reward_model",
    "TeachSettings": "palaestra.recipes.teach.settings",
    "TokenEnv": "palaestra.envs.token",
    "TokenVectorEnv": "palaestra.envs.token",
    "TrainSettings": "palaestra.recipes.train.settings",
    "TurnEnv": "palaestra.envs.turn",
    "TurnVectorEnv": "palaestra.envs.turn",
    "compare": "palaestra.recipes.evaluate.compare",
    "evaluate": "palaestra.recipes.evaluate.recipe",
    "load_policy": "palaestra.recipes.resume",
    "load_ppo_agent": "palaestra.recipes.compat.train_agent",
    "load_reward_model": "palaestra.learn.reward_model",
    "make_task": "palaestra.tasks.base",
    "make_teacher": "palaestra.teachers.base",
    "pretrain": "palaestra.recipes.train.pretrain",
    "resume": "palaestra.recipes.resume",
    "run_episode": "palaestra.recipes.compat.run_episode",
    "teach": "palaestra.recipes.teach.recipe",
    "train": "palaestra.recipes.train.recipe",
    "train_agent": "palaestra.recipes.compat.train_agent",
    "train_reward": "palaestra.recipes.train.reward_model",
}


_CALLABLE_PACKAGES = ("report", "research", "view")
"""Packages that can be called like a function: `palaestra.report(RUN)`, `palaestra.research(task=...)`, `palaestra.view(result)`."""


def __getattr__(name: str) -> Any:
    if name in _CALLABLE_PACKAGES:
        return importlib.import_module(f"palaestra.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'palaestra' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
