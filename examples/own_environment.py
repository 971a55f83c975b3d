"""A custom environment, written as a plain `gymnasium.Env`: summarise an article.

The action is a token; the observation is the tokens so far. The class does not depend on Palaestra, which trains a
language model in it.
"""

from typing import Any

import gymnasium
from gymnasium import spaces
from transformers import AutoTokenizer

from palaestra import LMActorNetwork, PPOConfig, train_agent
from palaestra.models.registry import locate

ARTICLES = {
    "Scientists have discovered a new species of deep-sea fish near a warm spring.": ("species", "fish", "deep"),
    "The economic outlook suggests inflation will continue to decrease this year.": ("inflation", "decrease"),
}


class SummarizationEnv(gymnasium.Env[list[int], int]):
    def __init__(self, model_name: str, max_tokens: int = 24) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(locate(model_name))
        self.action_space = spaces.Discrete(len(self.tokenizer))
        self.observation_space = spaces.Sequence(spaces.Discrete(len(self.tokenizer)))
        self.max_tokens = max_tokens

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[int], dict[str, Any]]:
        super().reset(seed=seed)
        self.article = list(ARTICLES)[self.np_random.integers(len(ARTICLES))]
        self.state = self.tokenizer.encode(f"Article: {self.article}\n\nWrite a concise summary:")
        self.start = len(self.state)
        return self.state, {"article": self.article}

    def step(self, action: int) -> tuple[list[int], float, bool, bool, dict[str, Any]]:
        self.state.append(action)
        summary = self.tokenizer.decode(self.state[self.start :], skip_special_tokens=True)
        ended = action == self.tokenizer.eos_token_id
        cut = not ended and len(self.state) - self.start >= self.max_tokens
        reward = 0.0
        if ended or cut:  # reward short summaries that contain the key terms
            reward = (1.0 - (len(self.state) - self.start) / self.max_tokens) + sum(
                0.2 for term in ARTICLES[self.article] if term in summary.lower()
            )
        return self.state, reward, ended, cut, {"summary": summary}


gymnasium.register("Summarization-v0", SummarizationEnv, kwargs={"model_name": "nano"})

metrics = []
rewards = train_agent(
    env_name="Summarization-v0",
    actor=LMActorNetwork("nano"),
    ppo_config=PPOConfig(learning_rate=3e-4, gamma=1.0, n_epochs=2, batch_size=16),
    max_episodes=96,
    max_timesteps=24,
    update_interval=32,
    save_interval=0,
    callback=lambda episodes, values: metrics.append(values["reward"]),
)
print(f"mean reward of an update's 32 summaries {metrics[0]:.3f} -> {metrics[-1]:.3f}")
