"""Shapes as types, in the symbols of docs/architecture.md.

x ──encoder──▶ z ──mechanism──▶ z_sent ──head──▶ logits          x_hat: an attacker's guess at x
"""

from typing import NewType

from jaxtyping import Float, Int, UInt8
from torch import Tensor

Images = Float[Tensor, "batch channel height width"]  # pixels in [0, 1]
Pixels = UInt8[Tensor, "image channel height width"]  # the same as stored: 0 … 255
Labels = Int[Tensor, "batch"]
Features = Float[Tensor, "batch *feature"]  # clean: never handed to an attack
Logits = Float[Tensor, "batch class"]

Sent = NewType("Sent", Tensor)  # what crosses the wire; only a Mechanism makes one
