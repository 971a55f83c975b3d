"""Agents that work on research tasks. To add one, write a class in its own file and register it like these."""

from palaestra.research.agents.base import AGENTS, Agent, AgentContext, Halt, absolute_path, make_agent, resolve_agent

for _name, _place, _description in (
    ("model", "model:ModelAgent", "a language model: --model, or model:NAME"),
    ("human", "simple:HumanAgent", "you, at the keyboard"),
    ("script", "simple:ScriptAgent", "script:FILE: actions from a file, separated by lines %%, or .jsonl; {task} in FILE is the task"),
    ("replay", "replay:ReplayAgent", "replays a run (replay:FOLDER) or an MLGym trajectory (replay:FILE.traj)"),
    ("baseline", "simple:BaselineAgent", "submits the task's baseline"),
    ("reference", "simple:ReferenceAgent", "submits the task's reference solution"),
    ("best_of", "simple:BestOfAgent", "the best of n episodes by validation: best_of:N:AGENT"),
):  # fmt: skip
    AGENTS.register(_name, f"{__name__}.{_place}", _description)

__all__ = ["AGENTS", "Agent", "AgentContext", "Halt", "absolute_path", "make_agent", "resolve_agent"]
