"""Play episodes that are described as JSON in the first argument, and print a hash of each. `semantic.replayability` runs it."""

import json
import sys

from palaestra.recipes.check.play import play
from palaestra.recipes.check.subjects import make_subject

if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    part = make_subject(request["env"], options=request["options"]).env
    assert part is not None
    with part.open() as env:
        print(json.dumps([play(env, seed, request["steps"]).digest() for seed in request["seeds"]]))  # noqa: T201
