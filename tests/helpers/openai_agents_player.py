"""An agent of the OpenAI Agents SDK that plays the guessing game of `ENV_URL` with a tool."""

import os
import sys

from http_agent import call


def main() -> None:
    from agents import Agent, Runner, function_tool

    @function_tool
    def guess(number: int) -> str:
        """Guess the number."""
        state = call(os.environ["ENV_URL"], {"message": str(number)})
        return "The game is over." if state["done"] else str(state["messages"][-1]["content"])

    agent = Agent(name="player", instructions="Be short.", tools=[guess], model=os.environ["OPENAI_MODEL"])
    question = call(os.environ["ENV_URL"])["messages"][0]["content"]
    sys.stdout.write(str(Runner.run_sync(agent, question).final_output))


if __name__ == "__main__":
    main()
