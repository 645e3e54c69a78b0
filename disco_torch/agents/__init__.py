"""Agents: torso, core, the heads that a rule asks for, and a one-step model of actions."""

from disco_torch.agents.action_model import ActionModel
from disco_torch.agents.agent import Agent, actions_from, sample_actions
from disco_torch.agents.config import PAPER_ATARI_AGENT, AgentConfig
from disco_torch.agents.conv_torso import ConvTorso
from disco_torch.agents.core import LSTMCore, NoMemory
from disco_torch.agents.torso import MLPTorso
from disco_torch.agents.torso_choice import choose_torso, describe_torso

__all__ = [
    "PAPER_ATARI_AGENT",
    "ActionModel",
    "Agent",
    "AgentConfig",
    "ConvTorso",
    "LSTMCore",
    "MLPTorso",
    "NoMemory",
    "actions_from",
    "choose_torso",
    "describe_torso",
    "sample_actions",
]
