"""Sharing: rules and runs on the Hugging Face Hub. `hf:ORG/NAME` names them wherever a rule or a run is named."""

from disco_torch.sharing.card import Card, Score, render_card
from disco_torch.sharing.command import train_command
from disco_torch.sharing.content import write_content
from disco_torch.sharing.push import push_to_hub

__all__ = ["Card", "Score", "push_to_hub", "render_card", "train_command", "write_content"]
