"""Soft Actor-Critic training with TF-Agents: a replay server, a trainer and N workers."""

__version__ = "0.1.0"
