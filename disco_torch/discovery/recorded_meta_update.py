"""How a meta-update is made fast: which of its parts are recorded, compiled and captured.

Streams are part of `meta_update` (`prefetched` acting, value functions on a `SideStream`); they do nothing unless captured.
"""

from __future__ import annotations

from torch import Tensor

from disco_torch.discovery.group_state import Draws, GroupGradient, GroupState
from disco_torch.discovery.inner_loop import InnerLoop, MetaUpdateParts, meta_update
from disco_torch.kernels import Recorded, Speed
from disco_torch.types import Params

FEW_UPDATES = 4
"""Up to this number of updates in a meta-update, all of them compute logs: one recording serves them all."""


class RecordedMetaUpdate:
    """`meta_update` of one group, at some speed.

    Args:
      loop: its parts, as plain functions.
      speed: stages to go through.

    Attributes:
      parts: the same parts, recorded.
    """

    def __init__(self, loop: InnerLoop, speed: Speed) -> None:
        # The parts of a meta-update are compiled, which is captured as a whole: compiled as one graph it would be too long.
        part = Speed(speed.trace, speed.compile)
        update = Recorded(loop.update_agents, part, "the agents' update")
        silently = update
        if loop.config.updates_per_meta_update > FEW_UPDATES:
            # The logs are a sixth of what an update of many agents reads and writes; only the last update needs them.
            silently = Recorded(lambda *args: loop.update_agents(*args)[:-1], part, "the agents' update without logs")
            # To compile the same graph again, for one update of many, would take longer than it ever saves.
            update = Recorded(loop.update_agents, Speed(speed.trace), "the agents' update with logs")
        self.parts = MetaUpdateParts(
            # Environments are many small operations: they compile quickly and gain much.
            act=Recorded(loop.act, Speed(speed.trace, speed.compile or speed.capture), "acting"),
            update_agents=update,
            update_agents_silently=silently,
            update_values=Recorded(loop.update_values, part, "the value functions' update"),
            meta_loss_and_grad=Recorded(loop.meta_loss_and_grad, part, "the meta-loss"),
            backward_update=Recorded(loop.backward_update, part, "the backward pass"),
            count_inputs=Recorded(loop.count_inputs, part, "the statistics of inputs"),
            normalize=Recorded(loop.normalize, part, "the normalisation of inputs"),
        )
        self._loop = loop
        self._meta_update = Recorded(self._plain, Speed(capture=speed.capture), "the meta-update", carry=True)

    def _plain(
        self, state: GroupState, rule_params: Params, draws: Draws, rates: Tensor
    ) -> tuple[GroupState, GroupGradient]:
        return meta_update(self._loop, self.parts, state, rule_params, draws, rates)

    def __call__(
        self, state: GroupState, rule_params: Params, draws: Draws, rates: Tensor
    ) -> tuple[GroupState, GroupGradient]:
        """See `meta_update`. With a capture, a state that was passed in or returned is overwritten by the next call."""
        after: tuple[GroupState, GroupGradient] = self._meta_update(state, rule_params, draws, rates)
        return after
