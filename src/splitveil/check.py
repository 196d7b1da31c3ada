"""Argument checks in one message style: what was wanted, what came, what to do."""

import math


class SplitVeilError(Exception):
    """A mistake of the caller, told in one line. The command line prints it without a traceback."""


class UsageError(SplitVeilError, ValueError):
    """A wrong argument, setting, file or name: fix it and call again (exit code 2)."""


class RunError(SplitVeilError, RuntimeError):
    """A run that began and could not go on: full disk, diverged loss, interrupted (exit code 3)."""


def positive(name: str, value: float, *, hint: str = "") -> float:
    """Return `value` if it is finite and > 0.

    >>> positive("radius", 2.0)
    2.0
    """
    if not (math.isfinite(value) and value > 0):
        raise UsageError(_say(f"{name} must be > 0{_finite(value)}, got {value}", hint))
    return value


def at_least(name: str, value: float, least: float, *, hint: str = "") -> float:
    """Return `value` if it is finite and ≥ `least`."""
    if not (math.isfinite(value) and value >= least):
        raise UsageError(_say(f"{name} must be ≥ {least}{_finite(value)}, got {value}", hint))
    return value


def fraction(name: str, value: float, *, hint: str = "") -> float:
    """Return `value` if 0 ≤ value < 1."""
    if not (0 <= value < 1):
        raise UsageError(_say(f"{name} must lie in [0, 1), got {value}", hint))
    return value


def share(name: str, value: float, *, hint: str = "") -> float:
    """Return `value` if 0 ≤ value ≤ 1."""
    if not (0 <= value <= 1):
        raise UsageError(_say(f"{name} must lie in [0, 1], got {value}", hint))
    return value


def one_of(name: str, value: str, allowed: "list[str] | tuple[str, ...]") -> str:
    """Return `value` if it is in `allowed`; otherwise name the nearest one that is."""
    if value not in allowed:
        raise UsageError(f"{name} {value!r} is not known{nearest(value, allowed)}; choose one of: {', '.join(allowed)}")
    return value


def nearest(word: str, known: "list[str] | tuple[str, ...]") -> str:
    """Say which known word is meant, if one is close.

    >>> nearest("gausian", ["gaussian", "laplace"])
    "; did you mean 'gaussian'?"
    """
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _finite(value: float) -> str:
    return "" if math.isfinite(value) else " and finite"


def _say(message: str, hint: str) -> str:
    return f"{message}; {hint}" if hint else message
