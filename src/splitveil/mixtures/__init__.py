"""K-means and Gaussian-mixture mathematics on tensors, all classes at once. Surrogates and bounds share it."""

from splitveil.mixtures.clustering import Clusters, kmeans
from splitveil.mixtures.gaussian import Fitted, Mixture, fit_mixture, log_density, log_joint

__all__ = ["Clusters", "Fitted", "Mixture", "fit_mixture", "kmeans", "log_density", "log_joint"]
