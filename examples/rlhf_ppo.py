"""RLHF with Gymformer's call: PPO maximises a preference with a KL penalty to the initial policy.

The preference is a function here. `reward="folder/of/a/reward/model"` uses a reward model instead
(see `reward_model.py`).
"""

from palaestra import LMActorNetwork, LMCriticNetwork, PPOConfig, train_agent


def preference(prompt: str, response: str) -> float:
    """Prefer short answers."""
    return 1.0 / (1.0 + len(response.split()))


actor, critic = LMActorNetwork("nano"), LMCriticNetwork("nano")
metrics = []
rewards = train_agent(
    env_name="palaestra/RLHF-v0",
    env_kwargs={"reward": preference, "kl_coef": 0.02},
    actor=actor,
    critic=critic,
    ppo_config=PPOConfig(learning_rate=3e-4, critic_learning_rate=1e-3, gamma=1.0, n_epochs=1, batch_size=12),
    max_episodes=96,
    max_timesteps=32,
    update_interval=24,
    save_interval=0,
    callback=lambda episodes, values: metrics.append(values),
)
print(f"reward {metrics[0]['reward']:.3f} -> {metrics[-1]['reward']:.3f}")
print(f"KL to the reference {metrics[-1]['reference_kl']:.3f} nats per response")
