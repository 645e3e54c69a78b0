"""Agents: torso, core, the heads that a rule asks for, and a one-step model of actions."""

from disco_torch.agents.action_model import ActionModel
from disco_torch.agents.agent import Agent, AgentConfig, actions_from, sample_actions
from disco_torch.agents.core import NoMemory
from disco_torch.agents.torso import MLPTorso

__all__ = ["ActionModel", "Agent", "AgentConfig", "MLPTorso", "NoMemory", "actions_from", "sample_actions"]
