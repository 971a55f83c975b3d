"""Run a policy on a research task through TorchRL. The policy is a script; TorchRL's language-model wrappers also work."""

from tensordict import TensorDictBase

from palaestra.integrations.torchrl import make_mlgym

MESSAGES = iter(
    [
        "Let me think about it first.",  # no command: a retry with its penalty
        """Copy the opponent, but forgive once: many of its defections are accidental.
```
create strategy.py
def choose(mine, theirs):
    if len(theirs) > 20 and theirs.count("D") > 0.7 * len(theirs):
        return "D"
    return "D" if theirs[-2:] == ["D", "D"] else "C"
end_of_file
```""",
        "```\nvalidate\n```",
        "```\nsubmit\n```",
    ]
)


def policy(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set(("text", "response"), [next(MESSAGES)])


env = make_mlgym(task="prisoners_dilemma", reward_wrong_format=-0.05)
data = env.rollout(10, policy)
env.close()
for step in data[0].unbind(0):
    print(f"reward {step['next', 'reward'].item():+.3f}: {step['next', 'message'].splitlines()[0]}")
last = data[0, -1]["next"]
print(f"score {last['score'].item():.3f}, baseline {last['baseline'].item():.3f}, {last['stop_reason']}")
