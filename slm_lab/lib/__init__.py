"""Small things with no knowledge of reinforcement learning."""
