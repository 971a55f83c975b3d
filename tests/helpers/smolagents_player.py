"""An agent of smolagents that plays the guessing game of `ENV_URL` with a tool. Its argument is the kind of agent."""

import os
import sys

from http_agent import call


def main() -> None:
    from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

    @tool
    def guess(number: int) -> str:
        """Guess the number.

        Args:
            number: the guess
        """
        import os

        from http_agent import call

        state = call(os.environ["ENV_URL"], {"message": str(number)})
        return "The game is over." if state["done"] else str(state["messages"][-1]["content"])

    model = OpenAIServerModel(
        os.environ["OPENAI_MODEL"], api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
    )
    kind = {"ToolCallingAgent": ToolCallingAgent, "CodeAgent": CodeAgent}[sys.argv[1]]
    agent = kind(tools=[guess], model=model, max_steps=4, verbosity_level=0)
    answer = agent.run(call(os.environ["ENV_URL"])["messages"][0]["content"])
    sys.stdout.write(str(answer))


if __name__ == "__main__":
    main()
