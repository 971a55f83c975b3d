"""What a language model writes for tool use: a request, and the calls that answer it."""

from __future__ import annotations

from functools import cache

from pydantic import BaseModel, Field

from palaestra.tasks.teaching import UnusableError
from palaestra.tasks.tools.library import LIBRARY
from palaestra.tasks.tools.plans import Plan, read_plan

MOST_CALLS = 4
LONGEST = 2_000


class ToolsDatum(BaseModel):
    """A request with its plan."""

    request: str = Field(min_length=1, description="What a person asks for; it says everything that the calls need.")
    plan: str = Field(
        min_length=1,
        max_length=LONGEST,
        description="The calls, a line each, for example: a = add_days('2024-03-01', 5) and then weekday(a)",
    )


@cache
def brief() -> str:
    """The tools, and what a good request is."""
    tools = "\n".join(f"- {tool.signature}: {tool.description}" for tool in LIBRARY.values())
    return (
        "Requests that are answered by calling tools, one to four calls, where a call may need the result of an earlier "
        "one. There is exactly one sensible plan, it uses only these tools, and its last call gives the answer. The plan "
        f"holds nothing but calls with literal arguments and names of earlier results.\n\nThe tools:\n{tools}"
    )


def read_datum_plan(datum: ToolsDatum) -> Plan:
    """The plan of a datum; nothing of it is executed here.

    Raises:
        UnusableError: it is no plan of one to four calls of known tools.
    """
    try:
        plan = read_plan(datum.plan.strip(), {})
    except SyntaxError as error:
        raise UnusableError(f"the plan is no Python: {error.msg}") from error
    except KeyError as error:
        raise UnusableError(f"the plan uses {error}, which is neither a tool nor a result") from error
    except (ValueError, TypeError, AttributeError, IndexError, RecursionError, MemoryError) as error:
        raise UnusableError(f"the plan holds something other than calls, literals and names: {error}") from error
    if not 1 <= len(plan.calls) <= MOST_CALLS:
        raise UnusableError(f"a plan has one to {MOST_CALLS} calls; got {len(plan.calls)}")
    return plan
