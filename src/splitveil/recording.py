"""A network's forward and backward pass, recorded once on a GPU and replayed at each step.

with recorded(network, sample): train it        the host launches two graphs a step, not some hundred kernels

A pass that is to be taken thousands of times is compiled before: norms, sums and activations become few kernels, each
of which reads its map once. The first of a kind on a machine waits for the compiler, the next ones find its work on
disk. `benchmarks/compiled.py` times both.
"""

import gc
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch
from torch import Tensor, nn

COMPILERS = ("cc", "gcc", "clang")  # of which one must be there: kernels are launched by a little C
MANY = 10_000  # networks that one process may compile: a suite trains dozens, where torch stops after eight


@contextmanager
def recorded(
    network: nn.Module, sample: tuple[Tensor, ...] | None, *, bfloat16: bool, is_compiled: bool = False
) -> Iterator[None]:
    """Replace the network's training pass by a recorded one; without a sample, or on a CPU, leave it as it is.

    With `is_compiled`, and where there is a compiler, what is recorded is compiled. Other passes stay as they are.

    `sample` is copied: the recording reads its inputs where those of the first one lay, and writes the next ones there.

    Rehearsal, recording and replay have streams of their own, and share the nodes that add up a weight's gradients.
    Torch warns of that, for the first time while it records: from there to the block's end it does not.
    """
    if sample is None or next(network.parameters()).device.type != "cuda":
        yield
        return
    with _unwarned():
        try:
            _record(
                network,
                tuple(each.clone() for each in sample),
                bfloat16=bfloat16,
                is_compiled=is_compiled and can_compile(),
            )
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


def can_compile() -> bool:
    """Whether what compiling needs is installed."""
    return find_spec("triton") is not None and any(shutil.which(name) for name in COMPILERS)


def _record(network: nn.Module, sample: tuple[Tensor, ...], *, bfloat16: bool, is_compiled: bool) -> None:
    """Its buffers (batch statistics) are left as they were."""
    kept = {name: value.clone() for name, value in network.named_buffers()}
    with torch.autocast("cuda", torch.bfloat16, enabled=bfloat16, cache_enabled=False):
        if not (is_compiled and _record_compiled(network, sample)):
            torch.cuda.make_graphed_callables(network, sample, allow_unused_input=True)
    with torch.no_grad():
        for name, value in network.named_buffers():
            value.copy_(kept[name])


def _record_compiled(network: nn.Module, sample: tuple[Tensor, ...]) -> bool:
    """Compile the pass in training and record that; scores are few, and of other shapes. Whether it could be done."""
    from torch._dynamo import config  # a second to import, and needed here alone
    from torch._dynamo.exc import TorchDynamoException

    plain, compiled = network.forward, torch.compile(network.forward, dynamic=False)
    network.forward = lambda *inputs: compiled(*inputs) if network.training else plain(*inputs)
    try:
        with config.patch(recompile_limit=MANY, accumulated_recompile_limit=MANY):
            torch.cuda.make_graphed_callables(network, sample, allow_unused_input=True)
    except TorchDynamoException as error:  # in the rehearsal: nothing is recorded yet
        warnings.warn(f"a network is trained as it is, since compiling it failed: {error}", stacklevel=3)
        network.__dict__.pop("forward", None)
        return False
    return True
