"""What an attack needs of the images themselves: a window for SSIM, colors for LPIPS, room for a network."""

from splitveil.attacks import Attack, Averaged, DecoderAttack, DiffusionAttack, OptimizationAttack, ShadowAttack
from splitveil.metrics import has_ssim
from splitveil.metrics.structural import WINDOW

Shape = tuple[int, int, int]  # channels, height, width
LPIPS_CHANNELS = (1, 3)
UNTRAINED_SIDE = 5  # pixels of the longer side: the deep image prior begins at a quarter of it, and norms take two


def lacks(attack: Attack, image_shape: Shape) -> str | None:
    """What these images lack for this attack, in a few words; None where they have it all."""
    match attack:
        case DecoderAttack(objective="ssim") if not has_ssim(image_shape):
            return f"needs {WINDOW}×{WINDOW} pixels"
        case DecoderAttack(objective="lpips") if image_shape[0] not in LPIPS_CHANNELS:
            return "needs 1 or 3 channels"
        case OptimizationAttack(prior="deep-image-prior") if max(image_shape[1:]) < UNTRAINED_SIDE:
            return f"needs {UNTRAINED_SIDE} pixels a side"
        case Averaged(attack=behind):
            return lacks(behind, image_shape)
        case ShadowAttack(decoder=behind):
            return lacks(behind, image_shape)
        case OptimizationAttack(start="decoder", decoder=behind) | DiffusionAttack(start="decoder", decoder=behind):
            return lacks(behind, image_shape)
    return None
