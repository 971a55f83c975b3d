"""A ReAct agent of LangGraph that plays a guessing game: its tool sends a number to the game and returns the reply.

It needs `pip install langchain-openai langgraph` and four environment variables: OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL
and ENV_URL.
"""

import json
import os
import urllib.request

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def call_game(**body: str) -> dict:
    """Read the state of the game, or send a move."""
    request = urllib.request.Request(
        os.environ["ENV_URL"],
        data=json.dumps(body).encode() if body else None,
        headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def guess(number: int) -> str:
    """Guess the number."""
    state = call_game(message=str(number))
    return "The game is over." if state["done"] else state["messages"][-1]["content"]


def main() -> None:
    agent = create_agent(ChatOpenAI(model=os.environ["OPENAI_MODEL"]), [guess], system_prompt="Be short.")
    agent.invoke({"messages": call_game()["messages"]})


if __name__ == "__main__":
    main()
