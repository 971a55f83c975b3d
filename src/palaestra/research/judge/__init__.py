"""Evaluation of submissions, outside the agent's reach."""
