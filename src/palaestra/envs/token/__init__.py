"""Environments in which one action is one token."""

from palaestra.envs.token.base import TokenEnv, TokenVectorEnv
from palaestra.envs.token.cot import CoTEnv, CoTVectorEnv
from palaestra.envs.token.prompts import Prompt, Response
from palaestra.envs.token.rlhf import RLHFEnv, RLHFVectorEnv

__all__ = ["CoTEnv", "CoTVectorEnv", "Prompt", "RLHFEnv", "RLHFVectorEnv", "Response", "TokenEnv", "TokenVectorEnv"]
