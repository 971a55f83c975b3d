"""Train CartPole with two small perceptrons and PPO, with Gymformer's call."""

import gymnasium

from palaestra import MLPActorNetwork, MLPCriticNetwork, PPOConfig, train_agent

env = gymnasium.make("CartPole-v1")
actor = MLPActorNetwork(env.observation_space.shape[0], 64, env.action_space.n)
critic = MLPCriticNetwork(env.observation_space.shape[0], 64)

means = train_agent(
    env_name="CartPole-v1",
    actor=actor,
    critic=critic,
    ppo_config=PPOConfig(learning_rate=3e-3, critic_learning_rate=3e-3, gamma=0.98),
    max_episodes=120,
    update_interval=20,
    save_interval=0,
)
print(f"mean return of the first 20 episodes {means[19]:.0f}, of all 120 {means[-1]:.0f}")
