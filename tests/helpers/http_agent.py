"""An agent of the standard library that plays a game over HTTP, or fails as its argument says."""

import json
import os
import sys
import time
import urllib.request

BEHAVIOUR = sys.argv[1] if len(sys.argv) > 1 else "play"


def call(url, body=None):
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as response:
        return json.load(response)


def ask(messages, **options):
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    answer = call(url, {"model": os.environ["OPENAI_MODEL"], "messages": messages, **options})
    return [choice["message"] for choice in answer["choices"]]


state = call(os.environ["ENV_URL"])
messages = state["messages"]
if BEHAVIOUR == "silent":
    sys.exit()
if BEHAVIOUR == "large":
    ask([{"role": "user", "content": "12 " * 5000}])
if BEHAVIOUR == "warm":
    ask(messages, temperature=1.5)
ask([{"role": "user", "content": "Make a plan."}], n=2 if BEHAVIOUR == "branch" else 1)
if BEHAVIOUR == "crash":
    raise RuntimeError("the agent is broken")
if BEHAVIOUR == "hang":
    time.sleep(600)
if BEHAVIOUR == "leave":
    sys.exit()
if BEHAVIOUR == "haunt" and os.fork() == 0:
    time.sleep(600)
while not state["done"]:
    (answer,) = ask(messages)
    state = call(os.environ["ENV_URL"], {"message": answer["content"]})
    messages += [answer, *state["messages"]]
