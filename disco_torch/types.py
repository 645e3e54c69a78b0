"""The dataclasses that travel between the subpackages, and how they behave as trees of tensors.

Time first: `T` steps, `B` batch, `A` actions, `Y` prediction size, `V` value bins. `T+1` rows where something bootstraps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Params = dict[str, Tensor]
"""Named parameters of a network, as `dict(module.named_parameters())` gives them."""
AgentOutput = dict[str, Tensor]
"""Named outputs of an agent: `logits` and whatever the rule asks for, [T, B, ...] each."""
Observations = Any
"""A tensor, or a dict, list or tuple of them, all with the same leading dimensions."""
Targets = dict[str, Any]
"""What a rule hands to the losses: for the Disco rule `pi`, `y`, `z` and the value estimates."""
Logs = dict[str, Tensor]
MeanAcrossProcesses = Callable[[Tensor], Tensor]
"""Takes what this process has and returns the mean over all processes."""
UnrollFn = Callable[[Params, Observations, Tensor], Any]
"""`(params, observations [T+1, B, ...], should_reset [T+1, B]) -> outputs`: an `AgentOutput`, a tuple that begins with one,
or `LearningOutputs`."""

T = TypeVar("T")


TREE_FIELDS: dict[type, tuple[str, ...]] = {}
"""The fields of all `tree_dataclass`es."""


@dataclass_transform()
def tree_dataclass(cls: type[T]) -> type[T]:
    """A dataclass that `torch.func` and checkpoints see as a tree of those of its fields that are not None."""
    cls = dataclass(cls)
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]

    def flatten(x: T) -> tuple[list[Any], tuple[str, ...]]:
        present = tuple(name for name in names if getattr(x, name) is not None)
        return [getattr(x, name) for name in present], present

    def unflatten(children: Iterable[Any], present: tuple[str, ...]) -> T:
        return cls(**(dict.fromkeys(names) | dict(zip(present, children, strict=True))))

    pytree.register_pytree_node(cls, flatten, unflatten, serialized_type_name=f"{cls.__module__}.{cls.__name__}")
    TREE_FIELDS[cls] = tuple(names)
    return cls


def tree_map(fn: Callable[..., Any], tree: T, *others: T) -> T:
    """Applies `fn` to every tensor of a tree and what equal trees have in its place; everything else stays."""
    return pytree.tree_map(lambda x, *rest: fn(x, *rest) if isinstance(x, Tensor) else x, tree, *others)


def tree_stack(trees: Sequence[T]) -> T:
    """Stacks the tensors of equal trees along a new first dimension."""
    return pytree.tree_map(lambda *xs: torch.stack(xs), *trees)


def tree_leaves(tree: Any) -> list[Tensor]:
    """The tensors of a tree of observations, dictionaries in the order of their sorted keys."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, Mapping):
        return [leaf for key in sorted(tree) for leaf in tree_leaves(tree[key])]
    if isinstance(tree, list | tuple):
        return [leaf for item in tree for leaf in tree_leaves(item)]
    raise ValueError(
        f"`observations` must be tensors or dicts, lists and tuples of them, got {type(tree).__name__}; "
        "convert arrays with torch.as_tensor."
    )


@dataclass(frozen=True)
class OutputSpec:
    """What an agent must compute for a rule: the sizes of its outputs.

    `flat` outputs depend on the state, [T, B, size]; `per_action` ones on state and action, [T, B, A, size].
    """

    flat: Mapping[str, int]
    per_action: Mapping[str, int] = dataclasses.field(default_factory=dict)


@tree_dataclass
class EmaState:
    """Moments of a moving average and the product of all decays so far (1 at the start)."""

    moment1: Tensor
    moment2: Tensor
    decay_product: Tensor


@tree_dataclass
class ValueOuts:
    """Value estimates along a rollout. Rows: `T+1` for values, `T` for what concerns a step.

    Without action values (V-trace) the q fields are `None`; without moving averages the normalised ones are.
    """

    value: Tensor | None = None  # [T+1, B]
    target_value: Tensor | None = None  # [T+1, B]
    rho: Tensor | None = None  # [T, B] importance weight
    adv: Tensor | None = None  # [T, B]
    normalized_adv: Tensor | None = None  # [T, B]
    value_target: Tensor | None = None  # [T, B]
    td: Tensor | None = None  # [T, B] value_target - value
    normalized_td: Tensor | None = None  # [T, B]
    qv_adv: Tensor | None = None  # [T+1, B, A] q - v
    normalized_qv_adv: Tensor | None = None  # [T+1, B, A]
    q_value: Tensor | None = None  # [T+1, B, A]
    target_q_value: Tensor | None = None  # [T+1, B, A]
    q_target: Tensor | None = None  # [T, B]
    q_td: Tensor | None = None  # [T, B] q_target - q(a)
    normalized_q_td: Tensor | None = None  # [T, B]


@tree_dataclass
class ActionSummary:
    """All that a discovered rule reads of the outputs of ALL actions.

    The outputs themselves are the largest tensors of an update. An agent that computes their summary as it goes (see
    `Summarizer`) never has to keep them; where it does not, the rule computes the same summary from its outputs.

    Attributes:
      q_values: [T+1, B, A], means of the action-value distributions.
      z_means: [T+1, B, A], mean of each z vector, for the logs.
      z_embeddings: [T+1, B, A, E], by the meta-network's encoder.
      lifetime_z_embeddings: [T+1, B, A, E'], by the encoder of its lifetime LSTM.
    """

    q_values: Tensor
    z_means: Tensor
    z_embeddings: Tensor
    lifetime_z_embeddings: Tensor


@dataclass(frozen=True)
class Summarizer:
    """How a rule summarises the outputs of all actions.

    Attributes:
      reads: the outputs per action that it needs.
      compute: from these, [..., size] each, to their summary, whose leading dimensions are the same.
    """

    reads: tuple[str, ...]
    compute: Callable[[AgentOutput], ActionSummary]


@tree_dataclass
class LearningOutputs:
    """What an agent computes for one update.

    Attributes:
      outputs: [T+1, B, ...] each: those of the state, and those per action unless there is a `summary` of them or only the
        taken actions were asked for.
      taken: outputs per action at the taken actions, [T, B, size] each; None where `outputs` has them all.
      summary: of the outputs of all actions, or None.
    """

    outputs: AgentOutput
    taken: AgentOutput | None = None
    summary: ActionSummary | None = None


@tree_dataclass
class RuleEstimates:
    """What a discovered rule computes for its meta-network, besides what it is given.

    Attributes:
      v_scalar: [T+1, B], values under the current policy.
      adv, normalized_adv: [T, B], advantages of the taken actions, and these divided by a moving deviation.
      q, qv_adv, normalized_qv_adv: [T+1, B, A], the target network's action values, and q - v of all actions.
      target_out: the target network's outputs, [T+1, B, ...] each.
      target_summary: of its outputs of all actions, where they were summarised.
    """

    v_scalar: Tensor | None = None
    adv: Tensor | None = None
    normalized_adv: Tensor | None = None
    q: Tensor | None = None
    qv_adv: Tensor | None = None
    normalized_qv_adv: Tensor | None = None
    target_out: AgentOutput | None = None
    target_summary: ActionSummary | None = None


@tree_dataclass
class UpdateRuleInputs:
    """What a rule sees of a rollout: `T` steps, and the `T+1` rows between which they lie.

    Attributes:
      observations: tree of [T+1, B, ...].
      actions: [T+1, B] integers; the last row is not used.
      rewards: [T, B], of the step that leaves row t.
      is_terminal: [T, B] bool (or 0 and 1), whether that step ended the episode.
      agent_out: the learning agent's outputs, [T+1, B, ...] each.
      taken_out: outputs per action at the taken actions, [T, B, size] each, or None to select them from `agent_out`. The
        losses need no others, so an agent may compute these alone with a graph.
      behaviour_agent_out: outputs at the time of acting; rules read `logits` only.
      value_out: value estimates of a value function outside of the rule, for rules that use one.
      extra_from_rule: what a discovered rule adds for its meta-network (`unroll_meta_net` does); a dict of the fields of
        `RuleEstimates` will do.
      is_truncated: [T, B] bool or None: steps whose next row is the last observation of an episode cut by a time limit.
        Returns bootstrap there and nothing flows across. None: no step was cut.
      resets: [T+1, B] bool or None: rows that begin an episode; None: the rows after a terminal step.
      agent_summary: of the learning agent's outputs of all actions, where `agent_out` does not hold them.
      loss_mask: [T, B], 1 for the steps that the loss is averaged over and 0 for the others; None: all of them count.
    """

    observations: Observations
    actions: Tensor
    rewards: Tensor
    is_terminal: Tensor
    agent_out: AgentOutput
    behaviour_agent_out: AgentOutput | None = None
    value_out: ValueOuts | None = None
    extra_from_rule: RuleEstimates | None = None
    is_truncated: Tensor | None = None
    resets: Tensor | None = None
    taken_out: AgentOutput | None = None
    agent_summary: ActionSummary | None = None
    loss_mask: Tensor | None = None

    def __post_init__(self) -> None:
        if isinstance(self.extra_from_rule, Mapping):
            known = TREE_FIELDS[RuleEstimates]
            unknown = sorted(set(self.extra_from_rule) - set(known))
            if unknown:
                raise ValueError(f"`extra_from_rule` has no {unknown[0]!r}; it may hold {list(known)}.")
            self.extra_from_rule = RuleEstimates(**self.extra_from_rule)

    @property
    def should_reset_mask_fwd(self) -> Tensor:
        """[T+1, B]: where a memory that reads forward is reset."""
        if self.resets is not None:
            return self.resets
        return torch.cat([torch.zeros_like(self.is_terminal[:1]), self.is_terminal])

    @property
    def should_reset_mask_bwd(self) -> Tensor:
        """[T+1, B]: where a memory that reads backward is reset."""
        ends = self.is_terminal
        if self.is_truncated is not None:
            ends = ends.bool() | self.is_truncated
        return torch.cat([ends, torch.zeros_like(ends[:1])])

    def continues(self) -> Tensor:
        """[T, B]: 0 where a step ended the episode, else 1, in the dtype of the rewards."""
        return 1.0 - self.is_terminal.to(self.rewards.dtype)

    def lambdas(self, lambda_: float) -> float | Tensor:
        """The trace parameter of the steps, see `lambdas_at_cuts`."""
        return lambdas_at_cuts(lambda_, self.is_truncated, self.rewards.dtype)

    def behaviour_logits(self) -> Tensor:
        """[T+1, B, A] of the policy that acted."""
        if self.behaviour_agent_out is None or "logits" not in self.behaviour_agent_out:
            raise ValueError(
                "`behaviour_agent_out` must hold the 'logits' of the policy that acted, got none; "
                "off-policy returns weigh by them."
            )
        return self.behaviour_agent_out["logits"]


def lambdas_at_cuts(lambda_: float, is_truncated: Tensor | None, dtype: torch.dtype) -> float | Tensor:
    """The trace parameter: `lambda_`, but 0 at steps [T, B] that a time limit cut, so that returns bootstrap there."""
    return lambda_ if is_truncated is None else lambda_ * (~is_truncated).to(dtype)  # [T, B]


@tree_dataclass
class Rollout:
    """Rows of experience, [T+1, B, ...]: the observation, the action taken on it, and what ARRIVED with it.

    So the reward and the end of the step from row t to t+1 are in row t+1. A discount of 0 marks a row that closed an
    episode and whose observation already belongs to the next one.

    Attributes:
      observations: tree of [T+1, B, ...].
      actions: [T+1, B] integers.
      rewards, discounts: [T+1, B].
      behaviour_logits: [T+1, B, A], of the policy that acted.
      truncations: [T+1, B] bool or None: rows that hold the last observation of an episode cut by a time limit. The
        action and logits there are of the next episode's first observation, which is left out: no loss may pair them with
        this one. The row after it belongs to the next episode.
      first_state: the agent's memory before row 0, a tree of [B, ...], or None for agents without one.
      executed: [T+1, B] bool or None: rows whose action was executed on the observation that the row holds, so that the
        loss may count its step. None: the steps that the reference counts, see `disco_torch.data.loss_mask`.
    """

    observations: Observations
    actions: Tensor
    rewards: Tensor
    discounts: Tensor
    behaviour_logits: Tensor
    truncations: Tensor | None = None
    first_state: Any = None
    executed: Tensor | None = None


def flatten_tree(tree: Any) -> tuple[list[Any], Any]:
    """All leaves of a tree, tensors or not, and its structure."""
    return pytree.tree_flatten(tree)


def unflatten_tree(leaves: Iterable[Any], structure: Any) -> Any:
    """The inverse of `flatten_tree`."""
    return pytree.tree_unflatten(leaves, structure)


def tree_items(tree: Any, name: str = "") -> list[tuple[str, Any]]:
    """Every leaf with its name, in the order of `flatten_tree`.

    A name is the path to the leaf: keys of dicts, fields of dataclasses and places in lists and tuples, joined by "/", as in
    "opt_state/mu/torso.0.weight".
    """
    children: Iterable[tuple[Any, Any]]
    if type(tree) in TREE_FIELDS:
        fields = [(field, getattr(tree, field)) for field in TREE_FIELDS[type(tree)]]
        children = [(field, value) for field, value in fields if value is not None]
    elif isinstance(tree, dict):
        children = tree.items()
    elif isinstance(tree, list | tuple):
        children = enumerate(tree)
    else:
        return [(name, tree)]
    return [item for key, child in children for item in tree_items(child, f"{name}/{key}" if name else str(key))]
