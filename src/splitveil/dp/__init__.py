"""What a release costs: events say what happened, calibration and the ledger say what it is worth."""

from splitveil.dp.calibration import delta_of, epsilon_of, gaussian_mu, gaussian_std
from splitveil.dp.events import Composed, Event, Gaussian, Laplace, NonPrivate
from splitveil.dp.ledger import Ledger, mu_of, pure_mu

__all__ = [
    "Composed",
    "Event",
    "Gaussian",
    "Laplace",
    "Ledger",
    "NonPrivate",
    "delta_of",
    "epsilon_of",
    "gaussian_mu",
    "gaussian_std",
    "mu_of",
    "pure_mu",
]
