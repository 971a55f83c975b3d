"""An agent that plays a guessing game: it asks a model for a number and sends it to the game until the game is over.

It needs `pip install openai` and four environment variables: OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL and ENV_URL.
"""

import json
import os
import urllib.request

from openai import OpenAI


def call_game(**body: str) -> dict:
    """Read the state of the game, or send a move."""
    request = urllib.request.Request(
        os.environ["ENV_URL"],
        data=json.dumps(body).encode() if body else None,
        headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def main() -> None:
    client = OpenAI()
    state = call_game()
    messages = state["messages"]
    while not state["done"]:
        completion = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages)
        answer = completion.choices[0].message
        state = call_game(message=answer.content or "")
        messages += [answer, *state["messages"]]


if __name__ == "__main__":
    main()
