"""SplitVeil: private split inference. Train split models that give less away, attack them hard, ship what was audited.

Names load on first use, so `import splitveil` is fast.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PLACES = {
    "Client": "splitveil.split",
    "Server": "splitveil.split",
    "cut": "splitveil.split",
    "Bottleneck": "splitveil.split",
    "ImageSet": "splitveil.data",
    "read": "splitveil.data",
    "Recipe": "splitveil.training",
    "train": "splitveil.training",
    "open_run": "splitveil.cli.runs",
    "evaluate": "splitveil.evaluation",
    "audit": "splitveil.evaluation",
    "Result": "splitveil.evaluation",
}

__all__ = ["__version__", *_PLACES]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'splitveil' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
