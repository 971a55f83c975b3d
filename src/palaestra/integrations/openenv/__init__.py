"""The environments of OpenEnv as turn environments: servers, and environments in the process."""
