"""Environments in which one action is one token."""

from palaestra.envs.token.base import TokenVectorEnv
from palaestra.envs.token.cot import CoTEnv, CoTVectorEnv
from palaestra.envs.token.prompts import Prompt, Response
from palaestra.envs.token.rlhf import RLHFEnv, RLHFVectorEnv
from palaestra.envs.token.single import TokenEnv

__all__ = ["CoTEnv", "CoTVectorEnv", "Prompt", "RLHFEnv", "RLHFVectorEnv", "Response", "TokenEnv", "TokenVectorEnv"]
