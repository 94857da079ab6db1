"""SLM Lab: a spec-driven experiment lab for deep reinforcement learning."""

__version__ = "0.1.0"
