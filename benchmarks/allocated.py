"""How much memory a call needs beyond what was held before it.

cuda    the allocator's own peak; what is kept counts memory reserved, since recordings live in pools of their own
cpu     every allocation and release of the call, in order, as the profiler saw them; their running sum at its highest
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

MIB = 2**20


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Bytes held at most during the call, beyond those at its start."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    assert seen.profiler is not None
    results = seen.profiler.kineto_results
    assert results is not None
    moves = [(e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]"]
    held = peak = 0
    for _, n_bytes in sorted(moves, key=lambda move: move[0]):
        held += n_bytes
        peak = max(peak, held)
    return peak


def kept_bytes(module: nn.Module | None, device: torch.device) -> int:
    """Bytes a module holds between calls: its tensors; on cuda all that the process has reserved and not given back."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()
    storages = {}
    for part in [] if module is None else module.modules():
        owned = [*part.parameters(recurse=False), *part.buffers(recurse=False), *vars(part).values()]
        for tensor in owned:
            if isinstance(tensor, torch.Tensor):
                storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(storages.values())
