"""Agents of other packages that play the guessing game of `ENV_URL` with a tool: `tool_agents.py PACKAGE [KIND]`."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from http_agent import call

MODEL = os.environ.get("OPENAI_MODEL", "")
SYSTEM = "Be short."


def guess(number: int) -> str:
    """Guess the number.

    Args:
        number: the guess
    """
    import os

    from http_agent import call

    state = call(os.environ["ENV_URL"], {"message": str(number)})
    return "The game is over." if state["done"] else str(state["messages"][-1]["content"])


def run_openai_agents(question: str) -> Any:
    from agents import Agent, Runner, function_tool

    agent = Agent(name="player", instructions=SYSTEM, tools=[function_tool(guess)], model=MODEL)
    return Runner.run_sync(agent, question).final_output


def run_smolagents(question: str, kind: str) -> Any:
    import smolagents

    model = smolagents.OpenAIServerModel(
        MODEL, api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
    )
    agent = getattr(smolagents, kind)(tools=[smolagents.tool(guess)], model=model, max_steps=4, verbosity_level=0)
    return agent.run(question)


def run_langgraph(question: str) -> Any:
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    agent = create_react_agent(ChatOpenAI(model=MODEL), [guess], prompt=SYSTEM)
    return agent.invoke({"messages": [("user", question)]})["messages"][-1].content


def run_langchain(question: str, *options: str) -> Any:
    """With the option `summary`, it replaces all but the last two messages by a summary as soon as there are four."""
    from langchain.agents import create_agent
    from langchain.agents.middleware import SummarizationMiddleware
    from langchain_openai import ChatOpenAI
    from langgraph.errors import GraphRecursionError

    model = ChatOpenAI(model=MODEL)
    summary = SummarizationMiddleware(model, trigger=("messages", 4), keep=("messages", 2))
    agent = create_agent(model, [guess], system_prompt=SYSTEM, middleware=[summary] if options else [])
    with suppress(GraphRecursionError):
        return agent.invoke({"messages": [("user", question)]})["messages"][-1].content


def run_pydantic_ai(question: str) -> Any:
    from pydantic_ai import Agent

    agent = Agent(f"openai-chat:{MODEL}", instructions=SYSTEM, tools=[guess])
    return agent.run_sync(question).output


def run_dspy(question: str) -> Any:
    import dspy

    dspy.configure(lm=dspy.LM(f"openai/{MODEL}", api_base=os.environ["OPENAI_BASE_URL"], cache=False))
    return dspy.ReAct("question -> answer", tools=[guess], max_iters=5)(question=question).answer


def run_inspect(question: str) -> Any:
    import inspect_ai
    from inspect_ai.agent import react
    from inspect_ai.dataset import Sample
    from inspect_ai.tool import tool

    @tool(name="guess")
    def make_guess() -> Any:
        async def execute(number: int) -> str:
            """Guess the number.

            Args:
                number: the guess
            """
            return await asyncio.to_thread(guess, number)

        return execute

    task = inspect_ai.Task([Sample(question)], solver=react(prompt=SYSTEM, tools=[make_guess()]))
    with tempfile.TemporaryDirectory() as folder:
        (log,) = inspect_ai.eval(task, model=f"openai/{MODEL}", log_dir=folder, display="none")
        return log.samples[0].output.completion


AGENTS: dict[str, Callable[..., Any]] = {
    "openai-agents": run_openai_agents,
    "smolagents": run_smolagents,
    "langgraph": run_langgraph,
    "langchain": run_langchain,
    "pydantic-ai": run_pydantic_ai,
    "dspy": run_dspy,
    "inspect": run_inspect,
}

if __name__ == "__main__":
    question = call(os.environ["ENV_URL"])["messages"][0]["content"]
    sys.stdout.write(str(AGENTS[sys.argv[1]](question, *sys.argv[2:])))
