"""Weights in files: rules, agents and value functions, in the reference's `.npz` and in `.safetensors`; rules by name."""

from disco_torch.weights.agent_files import load_agent, save_agent
from disco_torch.weights.disco103 import (
    cache_folder,
    download_disco103_weights,
    find_disco103_weights,
    local_disco103_weights,
)
from disco_torch.weights.files import StoredFile, load_npz, read_file, save_npz
from disco_torch.weights.registry import RuleEntry, default_hyper_params, list_rules, load_rule, register_rule
from disco_torch.weights.rule_files import load_disco103_weights, load_rule_file, save_rule
from disco_torch.weights.stored_inputs import TransformConfig

__all__ = [
    "RuleEntry",
    "StoredFile",
    "TransformConfig",
    "cache_folder",
    "default_hyper_params",
    "download_disco103_weights",
    "find_disco103_weights",
    "list_rules",
    "load_agent",
    "load_disco103_weights",
    "load_npz",
    "load_rule",
    "load_rule_file",
    "local_disco103_weights",
    "read_file",
    "register_rule",
    "save_agent",
    "save_npz",
    "save_rule",
]
