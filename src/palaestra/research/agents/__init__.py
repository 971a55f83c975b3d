"""Agents that work on research tasks. To add one, write a class in its own file and register it like these."""

from palaestra.research.agents.base import AGENTS, Agent, AgentContext, Halt, absolute_path, make_agent, resolve_agent

_HERE = "palaestra.research.agents"

AGENTS.register("model", f"{_HERE}.model:ModelAgent", "a language model: --model, or model:NAME")
AGENTS.register("human", f"{_HERE}.human:HumanAgent", "you, at the keyboard")
AGENTS.register(
    "script",
    f"{_HERE}.script:ScriptAgent",
    "script:FILE: the actions of a file, a line %% between two, or .jsonl; {task} in FILE is the task",
)
AGENTS.register(
    "replay",
    f"{_HERE}.replay:ReplayAgent",
    "the actions of a run: replay:FOLDER, or of a trajectory of MLGym: replay:FILE.traj",
)
AGENTS.register("baseline", f"{_HERE}.solutions:BaselineAgent", "hands the task's baseline in")
AGENTS.register("reference", f"{_HERE}.solutions:ReferenceAgent", "hands the good solution in that a task comes with")
AGENTS.register("best_of", f"{_HERE}.best_of:BestOfAgent", "the best of n episodes by validation: best_of:N:AGENT")

__all__ = ["AGENTS", "Agent", "AgentContext", "Halt", "absolute_path", "make_agent", "resolve_agent"]
