"""Calls of the systems that Palaestra replaces: Gymformer's `train_agent`, DataEnvGym's `run_episode`."""
