"""Reference classifiers with their usual cuts; decoders live in `splitveil.networks.decoders`.

>>> model = vgg11(n_classes=10, image_shape=(3, 32, 32))
>>> vgg11.cut
'features.pool2'
"""

from splitveil.networks.mobilenet import mobilenet_v2
from splitveil.networks.reference import Reference
from splitveil.networks.resnet import resnet18, resnet20
from splitveil.networks.small import small_cnn
from splitveil.networks.vgg import vgg11
from splitveil.networks.vit import vit

REFERENCES = {
    "small-cnn": small_cnn,
    "vgg11": vgg11,
    "resnet20": resnet20,
    "resnet18": resnet18,
    "mobilenet-v2": mobilenet_v2,
    "vit": vit,
}

__all__ = ["REFERENCES", "Reference", "mobilenet_v2", "resnet18", "resnet20", "small_cnn", "vgg11", "vit"]
