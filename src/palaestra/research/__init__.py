"""Research tasks: tasks, judging, workspaces, agents and standings."""

from palaestra.envs import register_env

register_env(
    "palaestra/Research-v0",
    "palaestra.research.workspace.env:ResearchEnv",
    "turn scale: work on a research task at a shell, scored against a baseline",
)
