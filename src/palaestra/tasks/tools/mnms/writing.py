"""What a language model writes for m&m's: a request, and the plan that answers it."""

from __future__ import annotations

from functools import cache

from pydantic import BaseModel, Field

from palaestra.tasks.teaching import UnusableError
from palaestra.tasks.tools.mnms.plans import Nodes, PlanNode, check_plan, tool_name
from palaestra.tasks.tools.mnms.tools import TOOLS

MOST_CALLS = 5


class MnmsStep(BaseModel):
    """One call."""

    tool: str = Field(min_length=1, description="The name of a tool.")
    arguments: dict[str, str | int | float] = Field(
        description="All arguments of the tool by name; <node-0>.text stands for the output text of the first call."
    )


class MnmsDatum(BaseModel):
    """A request with its plan."""

    request: str = Field(min_length=1, description="What a person asks for, with the names of files that it is about.")
    plan: list[MnmsStep] = Field(min_length=1, max_length=MOST_CALLS, description="The calls in order.")


@cache
def brief() -> str:
    tools = "\n".join(f"- {tool.signature}: {tool.description}" for tool in TOOLS.values())
    return (
        "Requests of a person about texts, images, sounds and facts that are answered by a plan: one to three calls of tools, in "
        "order, where a call may use an output of an earlier one. The request names every file and value that the plan needs "
        "and no tool. The plan uses as few tools as possible, and all arguments of each.\n\n"
        f"The tools, with arguments and outputs:\n{tools}"
    )


def read_datum_plan(datum: MnmsDatum) -> Nodes:
    """The nodes of a datum.

    Raises:
        UnusableError: a tool, an argument or a reference does not exist.
    """
    nodes = tuple(PlanNode(place, tool_name(step.tool), step.arguments) for place, step in enumerate(datum.plan))
    try:
        check_plan(nodes)
    except ValueError as error:
        raise UnusableError(f"the plan cannot be carried out: {error}") from error
    return nodes
