"""A network's forward and backward pass, recorded once on a GPU and replayed at each step.

with recorded(network, sample): train it        the host launches two graphs a step, not some hundred kernels
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def recorded(network: nn.Module, sample: tuple[Tensor, ...] | None, *, bfloat16: bool) -> Iterator[None]:
    """Replace the network's training pass by a recorded one; without a sample, or on a CPU, leave it as it is.

    Rehearsal, recording and replay have streams of their own, and share the nodes that add up a weight's gradients.
    Torch warns of that, for the first time while it records: from there to the block's end it does not.
    """
    if sample is None or next(network.parameters()).device.type != "cuda":
        yield
        return
    with _unwarned():
        try:
            _record(network, sample, bfloat16=bfloat16)
            yield
        finally:
            network.__dict__.pop("forward", None)  # the recording, with all the memory it holds,
            gc.collect()  # which is in a class, and a class refers to itself


@contextmanager
def _unwarned() -> Iterator[None]:
    """The setting is the whole process's, as it was before when the block ends."""
    warn = torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch
    warned = getattr(torch._C, "_warn_on_accumulate_grad_stream_mismatch", lambda: True)()
    warn(False)
    try:
        yield
    finally:
        warn(warned)


def _record(network: nn.Module, sample: tuple[Tensor, ...], *, bfloat16: bool) -> None:
    """Its buffers (batch statistics) are left as they were."""
    kept = {name: value.clone() for name, value in network.named_buffers()}
    with torch.autocast("cuda", torch.bfloat16, enabled=bfloat16, cache_enabled=False):
        torch.cuda.make_graphed_callables(network, sample, allow_unused_input=True)
    with torch.no_grad():
        for name, value in network.named_buffers():
            value.copy_(kept[name])
