"""The best possible error in one dimension, by brute integration in float64.

s = c(x) + σn,   x ~ density on [low, high]        Bayes MSE = E x² − E[E(x | s)²]
"""

from collections.abc import Callable

import numpy as np

STEPS = 2000


def bayes_mse(
    density: Callable[[np.ndarray], np.ndarray],
    curve: Callable[[np.ndarray], np.ndarray],
    *,
    std: float,
    low: float,
    high: float,
) -> float:
    x = low + (high - low) * (np.arange(STEPS) + 0.5) / STEPS
    weight = density(x) / density(x).sum()
    c = curve(x)
    s = np.linspace(c.min() - 8 * std, c.max() + 8 * std, STEPS)
    joint = weight * np.exp(-((s[:, None] - c) ** 2) / (2 * std**2))
    evidence = joint.sum(1)
    mean = np.divide(joint @ x, evidence, out=np.zeros(STEPS), where=evidence > 0)
    scale = (s[1] - s[0]) / (std * np.sqrt(2 * np.pi))
    return float(weight @ x**2 - scale * (evidence * mean**2).sum())
