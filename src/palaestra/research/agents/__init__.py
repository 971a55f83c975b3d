"""Agents that work on research tasks. To add one, write a class in its own file and register it like these."""

from palaestra.research.agents.base import AGENTS, Agent, AgentContext, Halt, absolute_path, make_agent, resolve_agent

for _name, _place, _description in (
    ("model", "model:ModelAgent", "a language model: --model, or model:NAME"),
    ("human", "simple:HumanAgent", "you, at the keyboard"),
    ("script", "simple:ScriptAgent", "script:FILE: the actions of a file, a line %% between two, or .jsonl; {task} in FILE is the task"),
    ("replay", "replay:ReplayAgent", "the actions of a run: replay:FOLDER, or of a trajectory of MLGym: replay:FILE.traj"),
    ("baseline", "simple:BaselineAgent", "hands the task's baseline in"),
    ("reference", "simple:ReferenceAgent", "hands the good solution in that a task comes with"),
    ("best_of", "simple:BestOfAgent", "the best of n episodes by validation: best_of:N:AGENT"),
):  # fmt: skip
    AGENTS.register(_name, f"{__name__}.{_place}", _description)

__all__ = ["AGENTS", "Agent", "AgentContext", "Halt", "absolute_path", "make_agent", "resolve_agent"]
