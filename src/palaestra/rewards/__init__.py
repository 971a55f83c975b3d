"""Reward models and their data."""

from palaestra.core.registry import declare_entry

declare_entry("palaestra.rewards", "model", "palaestra.rewards.model:load_reward_model", "the folder of a reward model")
