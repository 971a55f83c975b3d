"""Palaestra: language models learn inside Gymnasium environments, at three time-scales.

Importing this package registers the environments with Gymnasium and loads neither torch nor transformers.
The names below are imported on first use.
"""

from __future__ import annotations

from palaestra.interrupts import exit_on_interrupt, is_command

if is_command():
    exit_on_interrupt()  # Before the first slow import, until the command can catch a Ctrl-C itself.

import importlib
from typing import TYPE_CHECKING, Any

import palaestra.integrations
import palaestra.research
import palaestra.rewards
import palaestra.students
import palaestra.teachers  # noqa: F401  (these register environments, tasks, rewards, students and teachers)
from palaestra.core.registry import declare_entry
from palaestra.version import __version__

declare_entry("palaestra.result_views", "html", "palaestra.report.notebook:draw_result", "a result in a notebook")

if TYPE_CHECKING:
    from palaestra.core.records import Engine as Engine
    from palaestra.envs.lesson import LessonEnv as LessonEnv
    from palaestra.envs.token import TokenEnv as TokenEnv
    from palaestra.envs.token import TokenVectorEnv as TokenVectorEnv
    from palaestra.envs.turn import TurnEnv as TurnEnv
    from palaestra.envs.turn import TurnVectorEnv as TurnVectorEnv
    from palaestra.integrations.dataenvgym import run_episode as run_episode
    from palaestra.integrations.gymformer.networks import LMActorNetwork as LMActorNetwork
    from palaestra.integrations.gymformer.networks import LMCriticNetwork as LMCriticNetwork
    from palaestra.integrations.gymformer.networks import MLPActorNetwork as MLPActorNetwork
    from palaestra.integrations.gymformer.networks import MLPCriticNetwork as MLPCriticNetwork
    from palaestra.integrations.gymformer.train_agent import load_ppo_agent as load_ppo_agent
    from palaestra.integrations.gymformer.train_agent import train_agent as train_agent
    from palaestra.recipes.check.recipe import check as check
    from palaestra.recipes.evaluate.compare import compare as compare
    from palaestra.recipes.evaluate.recipe import evaluate as evaluate
    from palaestra.recipes.evaluate.rescore import rescore as rescore
    from palaestra.recipes.evaluate.settings import EvaluateSettings as EvaluateSettings
    from palaestra.recipes.research.recipe import run_research as run_research
    from palaestra.recipes.research.settings import ResearchSettings as ResearchSettings
    from palaestra.recipes.resume import load_policy as load_policy
    from palaestra.recipes.resume import resume as resume
    from palaestra.recipes.teach.recipe import teach as teach
    from palaestra.recipes.teach.settings import TeachSettings as TeachSettings
    from palaestra.recipes.train.pretrain import PretrainSettings as PretrainSettings
    from palaestra.recipes.train.pretrain import pretrain as pretrain
    from palaestra.recipes.train.recipe import train as train
    from palaestra.recipes.train.reward_model import RewardSettings as RewardSettings
    from palaestra.recipes.train.reward_model import train_reward as train_reward
    from palaestra.recipes.train.settings import TrainSettings as TrainSettings
    from palaestra.report.notebook import show as show
    from palaestra.report.page import write_report as write_report
    from palaestra.rewards.model import RewardModel as RewardModel
    from palaestra.rewards.model import load_reward_model as load_reward_model
    from palaestra.rl.grpo import GRPO as GRPO
    from palaestra.rl.grpo import GRPOConfig as GRPOConfig
    from palaestra.rl.ppo import PPO as PPO
    from palaestra.rl.ppo import PPOConfig as PPOConfig
    from palaestra.rl.reinforce import REINFORCE as REINFORCE
    from palaestra.rl.reinforce import REINFORCEConfig as REINFORCEConfig
    from palaestra.rl.rest_em import RestEM as RestEM
    from palaestra.rl.rest_em import RestEMConfig as RestEMConfig
    from palaestra.rl.rloo import RLOO as RLOO
    from palaestra.rl.rloo import RLOOConfig as RLOOConfig
    from palaestra.tasks.base import Task as Task
    from palaestra.tasks.base import make_task as make_task
    from palaestra.teachers.base import Teacher as Teacher
    from palaestra.teachers.base import make_teacher as make_teacher

_EXPORTS = {
    "palaestra.core.records": "Engine",
    "palaestra.envs.lesson": "LessonEnv",
    "palaestra.envs.token": "TokenEnv TokenVectorEnv",
    "palaestra.envs.turn": "TurnEnv TurnVectorEnv",
    "palaestra.integrations.dataenvgym": "run_episode",
    "palaestra.integrations.gymformer.networks": "LMActorNetwork LMCriticNetwork MLPActorNetwork MLPCriticNetwork",
    "palaestra.integrations.gymformer.train_agent": "load_ppo_agent train_agent",
    "palaestra.recipes.check.recipe": "check",
    "palaestra.recipes.evaluate.compare": "compare",
    "palaestra.recipes.evaluate.recipe": "evaluate",
    "palaestra.recipes.evaluate.rescore": "rescore",
    "palaestra.recipes.evaluate.settings": "EvaluateSettings",
    "palaestra.recipes.research.recipe": "run_research",
    "palaestra.recipes.research.settings": "ResearchSettings",
    "palaestra.recipes.resume": "load_policy resume",
    "palaestra.recipes.teach.recipe": "teach",
    "palaestra.recipes.teach.settings": "TeachSettings",
    "palaestra.recipes.train.pretrain": "PretrainSettings pretrain",
    "palaestra.recipes.train.recipe": "train",
    "palaestra.recipes.train.reward_model": "RewardSettings train_reward",
    "palaestra.recipes.train.settings": "TrainSettings",
    "palaestra.report.notebook": "show",
    "palaestra.report.page": "write_report",
    "palaestra.rewards.model": "RewardModel load_reward_model",
    "palaestra.rl.grpo": "GRPO GRPOConfig",
    "palaestra.rl.ppo": "PPO PPOConfig",
    "palaestra.rl.reinforce": "REINFORCE REINFORCEConfig",
    "palaestra.rl.rest_em": "RestEM RestEMConfig",
    "palaestra.rl.rloo": "RLOO RLOOConfig",
    "palaestra.tasks.base": "Task make_task",
    "palaestra.teachers.base": "Teacher make_teacher",
}
"""The exported names by module."""
_HOMES = {name: module for module, names in _EXPORTS.items() for name in names.split()}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'palaestra' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
