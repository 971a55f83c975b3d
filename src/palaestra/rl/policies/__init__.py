"""Policies: they sample actions, evaluate actions again with gradients, and offer their parameters to an optimizer."""
