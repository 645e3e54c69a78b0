"""Agents: a torso, the heads that a rule asks for, and a one-step model of actions."""

from disco_torch.agents.action_model import ActionModel, Reads
from disco_torch.agents.agent import Agent, AgentConfig, actions_from, sample_actions

__all__ = ["ActionModel", "Agent", "AgentConfig", "Reads", "actions_from", "sample_actions"]
