"""An agent of the standard library that plays a game over HTTP, or fails as its argument says."""

import json
import os
import sys
import time
import urllib.request
from typing import Any


def call(url: str, body: Any = None) -> Any:
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as response:
        return json.load(response)


def ask(messages: list[Any], **options: Any) -> list[Any]:
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    answer = call(url, {"model": os.environ["OPENAI_MODEL"], "messages": messages, **options})
    return [choice["message"] for choice in answer["choices"]]


def main(behavior: str) -> None:
    state = call(os.environ["ENV_URL"])
    messages = state["messages"]
    if behavior == "silent":
        return
    if behavior == "large":
        ask([{"role": "user", "content": "12 " * 5000}])
    if behavior == "greedy":
        ask(messages, temperature=0)
    ask([{"role": "user", "content": "Make a plan."}], n=2 if behavior == "branch" else 1)
    if behavior == "crash":
        raise RuntimeError("the agent is broken")
    if behavior == "hang":
        time.sleep(600)
    if behavior == "leave":
        return
    if behavior == "haunt" and os.fork() == 0:
        time.sleep(600)
    while not state["done"]:
        (answer,) = ask(messages)
        state = call(os.environ["ENV_URL"], {"message": answer["content"]})
        messages += [answer, *state["messages"]]


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "play")
