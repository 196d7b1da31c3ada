"""Which client this is: its answers stand for no other's.

A network is known by every layer's settings, hooks and numbers, those it does not save among them, and by the code of
what it computes; not by its answers, which another device gives in other last digits. A client that is only a function
is known by them all the same, and by its name where they are random.
"""

import hashlib
import json
import secrets
from functools import partial
from types import FunctionType

import numpy as np
import torch
from torch import nn

from splitveil.attacks import Oracle
from splitveil.evaluation.roles import Roles
from splitveil.randomness import SeededSource

PROBES = 8  # auxiliary images that a client which is only a function is recognized by
HOOKS = {"_forward_hooks", "_forward_pre_hooks"}
USUAL = vars(nn.Module()).keys() - HOOKS  # attributes that every layer has
PLAIN = bool | int | float | complex | str | bytes | None


def client_fingerprint(oracle: Oracle, roles: Roles, *, name: str | None = None) -> str:
    """Which client this is: its network and mechanism, or its name and answers where it is only a function.

    Random answers do not tell one function from another: without a name such a function is a new one at each call.
    """
    digest, client = hashlib.sha256(), oracle.client
    if client is None:
        x = roles.auxiliary.take(min(PROBES, len(roles.auxiliary))).images()
        answers = oracle.release(x, source=SeededSource(0, "fingerprint"))
        digest.update(repr((tuple(answers.shape), name)).encode())
        if not oracle.is_random(x):
            digest.update(answers.cpu().numpy().tobytes())
        elif name is None:
            digest.update(secrets.token_bytes(16))
        return f"function {digest.hexdigest()[:16]}"
    digest.update(json.dumps([client.mechanism.name, client.mechanism.settings()], sort_keys=True).encode())
    digest.update(_told_of(client).encode())
    return f"client {digest.hexdigest()[:16]}"


def head_fingerprint(head: nn.Module | None) -> str:
    """Which server's half this is."""
    return "none" if head is None else f"head {hashlib.sha256(_told_of(head).encode()).hexdigest()[:16]}"


def _told_of(module: nn.Module) -> str:
    layers = [
        (name, _told(type(layer).forward), layer.extra_repr(), _told(_own(layer)))
        for name, layer in module.named_modules()
    ]
    numbers = sorted((name, _told(value)) for name, value in (*module.named_parameters(), *module.named_buffers()))
    return repr((layers, numbers))


def _own(layer: nn.Module) -> dict[str, object]:
    return {key: value for key, value in vars(layer).items() if key not in USUAL}


def _told(value: object) -> str:
    """Numbers, a word, a function by its code, or a collection of such things; of anything else, its kind."""
    match value:
        case torch.Tensor():
            content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            return repr((tuple(value.shape), str(value.dtype), hashlib.sha256(content).hexdigest()))
        case np.ndarray():
            return repr((value.shape, str(value.dtype), hashlib.sha256(value.tobytes()).hexdigest()))
        case dict():
            return repr(sorted((_told(key), _told(each)) for key, each in value.items()))
        case tuple() | list():
            return repr([_told(each) for each in value])
        case set() | frozenset():
            return repr(sorted(map(_told, value)))
        case partial():
            return _told((value.func, value.args, value.keywords))
        case FunctionType():
            return _told((_code(value), value.__defaults__, value.__kwdefaults__, _closed(value)))
        case _:
            return repr(value) if isinstance(value, PLAIN) else getattr(value, "__qualname__", type(value).__qualname__)


def _code(function: FunctionType) -> tuple[str, str, list[str]]:
    """Its steps, names and constants; of functions within, their steps alone."""
    code = function.__code__
    constants = [repr(each) if isinstance(each, PLAIN | tuple) else type(each).__name__ for each in code.co_consts]
    return code.co_code.hex(), repr(code.co_names), constants


def _closed(function: FunctionType) -> list[str]:
    """What it closes over; of functions, their code alone: one may close over itself."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [_told(_code(each)) if isinstance(each, FunctionType) else _told(each) for each in cells]
