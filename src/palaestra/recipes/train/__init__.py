"""Reinforcement learning: train a policy in an environment, train a reward model, pretrain the embedded models."""
