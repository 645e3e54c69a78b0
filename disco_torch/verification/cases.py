"""Recomputes the cases of a folder of reference outputs, one function for each kind of file.

Each returns the quantities it compared, as `(name, ours, reference)`. The conventions are those of the reference: rows of
[T+1, B], target parameters that start at 0.95 times the agent's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from disco_torch.agents import Agent, AgentConfig
from disco_torch.data import rule_inputs
from disco_torch.discovery import MetaLossWeights, MixedModeMetaGradient, PlainMetaGradient
from disco_torch.optim import AdamConfig
from disco_torch.rules import (
    ActorCritic,
    ActorCriticConfig,
    DiscoConfig,
    DiscoState,
    DiscoUpdateRule,
    MetaNetConfig,
    MetaRNNConfig,
)
from disco_torch.training import Learner, LearnerState, ValueFunction, ValueFunctionConfig
from disco_torch.types import Params, Rollout
from disco_torch.values import (
    estimate_q_values,
    estimate_values,
    signed_hyperbolic,
    signed_log,
    signed_parabolic,
    two_hot,
)
from disco_torch.verification import content
from disco_torch.verification.content import Group
from disco_torch.weights.haiku import Arrays, agent_layers, from_haiku, rule_layers, to_haiku

Comparison = tuple[str, Any, np.ndarray]
INITIAL_TARGET_SCALE = 0.95
INVERSE_INPUT_SCALE = 20.0
"""The reference files evaluate the inverse transform at x / 20: its own range is that much smaller."""


@dataclass(frozen=True)
class Case:
    """One reference file, the folder's configuration, and what to compute it with.

    Attributes:
      arrays: of the file.
      config: of the folder.
      rule_name: of the rule that the file is about, an entry of `config["rules"]`.
      released: the released rule's weights, for files without `eta`.
      dtype: to compute in.
      read: names of the arrays that were read or compared so far.
    """

    arrays: Arrays
    config: Mapping[str, Any]
    rule_name: str = ""
    released: Arrays | None = None
    dtype: torch.dtype = torch.float64
    read: set[str] = field(default_factory=set)

    def group(self, prefix: str) -> Group:
        start = f"{prefix}/"
        arrays = {name.removeprefix(start): array for name, array in self.arrays.items() if name.startswith(start)}
        return Group(prefix, arrays, self.read)

    def numbered(self, pattern: str, count: int) -> list[Group]:
        """The groups `pattern` with {} = 0 .. count - 1."""
        return [self.group(pattern.format(i)) for i in range(count)]

    def tensor(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(np.array(array))
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def rollout(self, group: Arrays) -> Rollout:
        return Rollout(*(self.tensor(group[name]) for name in content.ROLLOUT))

    def rule(self) -> DiscoUpdateRule:
        """The rule of a case, with the parameters in its file or the released ones."""
        sizes = self.config["rules"][self.rule_name]
        keys = ("prediction_size", "hidden_size", "embedding_size", "policy_target_channels", "policy_channels")
        net: dict[str, Any] = {key: sizes[key] for key in keys if key in sizes}
        if "meta_rnn_kwargs" in sizes:
            net["meta_rnn"] = MetaRNNConfig(**sizes["meta_rnn_kwargs"])
        other = {key: sizes[key] for key in ("value_discount", "num_bins", "max_abs_value")}
        rule = DiscoUpdateRule(DiscoConfig(net=MetaNetConfig(**net), **other)).to(self.dtype)
        eta: Arrays | None = self.group("eta") or self.released
        if eta is None:
            raise MissingWeights(f"rule {self.rule_name!r} needs --weights")
        rule.load_state_dict(from_haiku(rule, rule_layers(rule), eta))
        return rule

    def agent(self, rule: DiscoUpdateRule | ActorCritic) -> Agent:
        sizes, num_actions = self.config["agent"], self.config["A"]
        config = AgentConfig(sizes["dense"], sizes["lstm_size"], sizes["head_mlp_hiddens"])
        example = torch.zeros(sizes["observation_size"])
        return Agent(example, num_actions, rule.outputs(num_actions), config).to(self.dtype)


class MissingWeights(Exception):
    """A case needs parameters that were not given."""


def compare_group(title: str, ours: Mapping[str, Any], reference: Group, required: Iterable[str]) -> Iterator[Comparison]:
    """Every array that the group must hold, and those that it holds besides if we compute them."""
    for name in dict.fromkeys([*required, *(name for name in reference if name in ours)]):
        yield f"{title}/{name}", ours.get(name), reference[name]


def values(case: Case) -> Iterator[Comparison]:
    inputs = case.group("input")
    given = {name: case.tensor(inputs[name]) for name in content.VALUE_INPUTS}
    settings = case.config["values"]
    discounts = settings["discount"] * given["discounts"]
    steps = (given["rewards"], discounts, given["rho"], settings["lambda_"])
    outs = estimate_values(given["values"], *steps)
    yield from compare_group("vtrace", vars(outs), case.group("vtrace"), content.VTRACE)
    q_outs = estimate_q_values(
        given["values"],
        given["q"],
        given["actions"],
        *steps,
        target_values=given["target_values"],
        target_q_values=given["target_q"],
    )
    yield from compare_group("retrace", vars(q_outs), case.group("retrace"), content.RETRACE)
    x, reference = given["x"], case.group("transforms")
    transforms = {
        "signed_log": signed_log(x),
        "signed_hyperbolic": signed_hyperbolic(x),
        "signed_parabolic": signed_parabolic(x / INVERSE_INPUT_SCALE),
        "two_hot": two_hot(x, reference["two_hot"].shape[-1], settings.get("max_abs_value", 300.0)),
    }
    yield from compare_group("transforms", transforms, reference, content.TRANSFORMS)


def scaled(params: Params, factor: float) -> Params:
    return {name: factor * param for name, param in params.items()}


def rule_state_arrays(state: DiscoState) -> dict[str, Tensor]:
    return {
        "adv_m1": state.adv_ema_state.moment1,
        "adv_m2": state.adv_ema_state.moment2,
        "td_m1": state.td_ema_state.moment1,
        "td_m2": state.td_ema_state.moment2,
        "decay": state.adv_ema_state.decay_product,
        "rnn_h": state.rnn_state.hidden,
        "rnn_c": state.rnn_state.cell,
    }


@torch.no_grad()
def rule(case: Case) -> Iterator[Comparison]:
    """Successive applications of the rule to one agent, its state carried from one to the next."""
    rule = case.rule()
    agent = case.agent(rule)
    theta = from_haiku(agent, agent_layers(agent), case.group("theta"))
    hyper = case.config["hyper_params"]
    state = rule.init_meta_state(scaled(theta, INITIAL_TARGET_SCALE))
    for i, given in enumerate(case.numbered("call{}_in", content.NUMBER_OF_CALLS["rule"])):
        rollout = case.rollout(given)
        agent_out, _ = agent.unroll(theta, rollout.observations)
        inputs = rule_inputs(rollout, agent_out)
        targets, state = rule.unroll_meta_net(inputs, theta, state, agent.unroll, hyper)
        loss, logs = rule.agent_loss(inputs, targets, hyper)
        loss_no_meta, logs_no_meta = rule.agent_loss_no_meta(inputs, targets, hyper)
        ours = {**targets, **rule_state_arrays(state), "loss": loss, "loss_no_meta": loss_no_meta}
        ours |= {f"log/{name}": value for name, value in (logs | logs_no_meta).items()}
        yield from compare_group(f"call{i}", ours, case.group(f"call{i}_out"), content.RULE_OUTPUTS)
        if i == 0:  # the outputs of the networks are stored of the first call alone
            for name, outputs in (("agent_out", agent_out), ("target_out", targets["target_out"])):
                stored = case.group(f"call0_in/{name}")
                yield from compare_group(f"call0/{name}", outputs, stored, content.AGENT_OUTPUTS)


def compare_updates(case: Case, kind: str, learner: Learner, agent: Agent, state: LearnerState) -> Iterator[Comparison]:
    """One agent update for each rollout of the file: the logs of each, and the parameters and moments after the last."""
    logged, kept = STORED_OF_UPDATES[kind]
    rollouts = case.numbered("step{}_in", content.NUMBER_OF_CALLS[kind])
    for i, given in enumerate(rollouts):
        state, logs = learner.update(state, case.rollout(given))
        yield from compare_group(f"step{i}/log", logs, case.group(f"step{i}_log"), logged)
    params = {"theta": state.params, "mu": state.opt_state.mu, "nu": state.opt_state.nu}
    if isinstance(state.meta_state, DiscoState):
        params["target"] = state.meta_state.target_params
    for name in kept:
        ours = to_haiku(agent, agent_layers(agent), params[name])
        yield from compare_group(name, ours, case.group(f"{name}{len(rollouts)}"), ours)


STORED_OF_UPDATES = {
    "learner": (content.LEARNER_LOGS, ("theta", "target", "mu", "nu")),
    "actor_critic": (content.ACTOR_CRITIC_LOGS, ("theta",)),
}
"""What is stored of each update, and what after the last."""


def disco_learner(case: Case) -> tuple[Learner, Agent, LearnerState]:
    """A learner with the Disco rule at the beginning of a case."""
    rule, sizes = case.rule(), case.config["agent"]
    agent = case.agent(rule)
    theta = from_haiku(agent, agent_layers(agent), case.group("theta0"))
    optimizer = AdamConfig(sizes["learning_rate"], sizes["max_abs_update"])
    learner = Learner(agent, rule, optimizer, case.config["hyper_params"])
    state = learner.init(params=theta)
    state.meta_state.target_params = scaled(theta, INITIAL_TARGET_SCALE)
    return learner, agent, state


def learner(case: Case) -> Iterator[Comparison]:
    """Agent updates with the Disco rule."""
    learner, agent, state = disco_learner(case)
    yield from compare_updates(case, "learner", learner, agent, state)


def actor_critic(case: Case) -> Iterator[Comparison]:
    """Agent updates with the actor-critic rule."""
    settings = case.config["actor_critic"]
    rule = ActorCritic(ActorCriticConfig(num_bins=settings["num_bins"], max_abs_value=settings["max_abs_value"]))
    agent = case.agent(rule)
    theta = from_haiku(agent, agent_layers(agent), case.group("theta0"))
    optimizer = AdamConfig(settings["learning_rate"], case.config["agent"]["max_abs_update"])
    learner = Learner(agent, rule, optimizer, settings["hyper_params"])
    yield from compare_updates(case, "actor_critic", learner, agent, learner.init(params=theta))


def meta_gradient(case: Case) -> Iterator[Comparison]:
    """The gradient of the meta-loss through agent and value-function updates."""
    learner, agent, state = disco_learner(case)
    settings = case.config["meta"]
    value_function = ValueFunction(
        torch.zeros(case.config["agent"]["observation_size"]), ValueFunctionConfig(**settings["value_fn"])
    )
    value_function.net.to(case.dtype)
    layers = agent_layers(value_function.net, "value_fn")
    value_state = value_function.init(params=from_haiku(value_function.net, layers, case.group("value_params0")))
    train = [case.rollout(given) for given in case.numbered("train{}", settings["inner_steps"])]
    valid = case.rollout(case.group("valid"))
    rule_params = {name: param.detach() for name, param in learner.rule.named_parameters()}
    assert isinstance(learner.rule, DiscoUpdateRule)
    for title, implementation in (("mixed-mode", MixedModeMetaGradient), ("gradients", PlainMetaGradient)):
        compute = implementation(learner, value_function, MetaLossWeights(**settings["weights"]))
        result = compute(rule_params, state, value_state, train, valid)
        grads = to_haiku(learner.rule, rule_layers(learner.rule), result.grads)
        yield from compare_group(title, grads, case.group("grads"), grads)
    ours: dict[str, Any] = {**result.logs, **vars(result.value_out)}
    theta = to_haiku(agent, agent_layers(agent), result.learner_state.params)
    value_params = to_haiku(value_function.net, layers, result.value_state.params)
    final = {f"theta/{name}": array for name, array in theta.items()}
    final |= {f"value_params/{name}": array for name, array in value_params.items()}
    yield from compare_group("aux", ours | final, case.group("aux"), (*content.META_LOSS, *final))
