"""K-means and Gaussian-mixture mathematics on tensors, all classes at once. Surrogates and bounds share it."""

from splitveil.mixtures.clustering import Clusters, kmeans
from splitveil.mixtures.gaussian import Fitted, Mixture, fit_mixture, log_density, log_joint
from splitveil.mixtures.leak import leak_nats, without_noise

__all__ = [
    "Clusters",
    "Fitted",
    "Mixture",
    "fit_mixture",
    "kmeans",
    "leak_nats",
    "log_density",
    "log_joint",
    "without_noise",
]
