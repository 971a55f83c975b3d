"""RLHF by Gymformer's call: PPO raises a preference and stays near where it started.

The preference is a function here; `reward="folder/of/a/reward/model"` works the same way
(see `reward_model.py`).
"""

from palaestra import LMActorNetwork, LMCriticNetwork, PPOConfig, train_agent


def preference(prompt: str, response: str) -> float:
    """People like answers that get to the point."""
    return 1.0 / (1.0 + len(response.split()))


actor, critic = LMActorNetwork("nano"), LMCriticNetwork("nano")
metrics = []
rewards = train_agent(
    env_name="RLHFEnv-v0",
    env_options={"reward": preference, "kl_coef": 0.02},
    actor=actor,
    critic=critic,
    ppo_config=PPOConfig(learning_rate=3e-4, critic_learning_rate=1e-3, gamma=1.0, n_epochs=1, batch_size=12),
    max_episodes=96,
    max_timesteps=32,
    update_interval=24,
    save_interval=0,
    callback=lambda episodes, seen: metrics.append(seen),
)
print(f"reward {metrics[0]['reward']:.3f} -> {metrics[-1]['reward']:.3f}")
print(f"KL to the reference {metrics[-1]['reference_kl']:.3f} nats a response")
