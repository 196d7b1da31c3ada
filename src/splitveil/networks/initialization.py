"""Starting weights of the reference classifiers.

    convolution:  N(0, 2 / (k² · channels_out)), bias 0          the variance of activations survives a ReLU

Source: He et al., "Delving Deep into Rectifiers" (2015), the backward form.
"""

from torch import nn


def initialize(model: nn.Sequential) -> nn.Sequential:
    """Draw every convolution's weights anew from torch's global generator; other layers keep torch's defaults."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
