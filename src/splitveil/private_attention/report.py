"""What a privacy officer signs: the guarantee, the assumptions it rests on, and what it does not say."""

import math
from dataclasses import dataclass
from typing import Any

from splitveil.dp.calibration import delta_of, epsilon_of
from splitveil.private_attention.facts import ReleaseFacts

TABLE_DELTAS = (1e-5, 1e-6, 1e-8)  # other readings of the same release


@dataclass(frozen=True, eq=False)
class Report:
    """A view of the release's public facts; it never sees a row."""

    facts: ReleaseFacts

    def text(self) -> str:
        """The statement, a paragraph a line."""
        return "\n".join(
            [self._verdict(), self._unit(), self._cost(), self._noise(), self._assumptions(), self._limits()]
        )

    def to_json(self) -> dict[str, Any]:
        """Numbers beside the words."""
        facts, calibration = self.facts, self.facts.calibration
        return facts.to_json() | {
            "statement": self.text().splitlines(),
            "sigma_over_sensitivity": calibration.scale / math.sqrt(calibration.sensitivity2),
            "noise_std": facts.noise_std,
            "readings": {str(delta): self.epsilon(delta) for delta in TABLE_DELTAS},
        }

    def epsilon(self, delta: float) -> float | None:
        """ε of the same release at another δ; None where the slack alone exceeds that δ or the release is not
        private."""
        slack = self.facts.calibration.slack
        if not self.facts.is_private or slack >= delta:
            return None
        return epsilon_of(self.facts.calibration.mu, delta - slack)

    def _verdict(self) -> str:
        spec = self.facts.spec
        if not self.facts.is_private:
            return f"NOT PRIVATE: noise by {self.facts.sampler}. Whoever knows the seed can remove it. For tests only."
        return (
            f"This memory is ({spec.epsilon:g}, {spec.delta:g})-differentially private. The guarantee covers its "
            "files and all answers computed from it: any number of queries, chosen in any way, also by earlier answers."
        )

    def _unit(self) -> str:
        spec = self.facts.spec
        what = "one row (a key and its value)" if spec.unit == "row" else "one document (all its rows together)"
        if spec.adjacency == "add_remove":
            how = f"whether {what} is present at all. The number of units is protected too and is stated nowhere"
        else:
            how = f"what {what} contains. The number of units is taken to be public"
        clip = ""
        if spec.unit == "document":
            clip = (
                f" A document's whole contribution is shortened to that of {spec.document_rows:g} row(s) at the bounds."
            )
        return f"Protected: {how}.{clip}"

    def _cost(self) -> str:
        facts, mu = self.facts, self.facts.calibration.mu
        share = f", shared by {facts.spec.shares} memories made from the same units" if facts.spec.shares > 1 else ""
        heads = f" over {facts.heads} heads" if facts.heads > 1 else ""
        return (
            f"Cost: {mu:.6g}-GDP{heads}{share}; at ε = {facts.spec.epsilon:g} the noise takes "
            f"{delta_of(mu, facts.spec.epsilon):.3g} of δ, lattice and sampler {facts.calibration.slack:.3g}. "
            "Another memory from the same units costs again: costs add as μ_total = √(Σ μ²)."
        )

    def _noise(self) -> str:
        facts, calibration = self.facts, self.facts.calibration
        ratio = calibration.scale / math.sqrt(calibration.sensitivity2)
        return (
            f"Noise: {facts.sampler}, σ = {ratio:.4g} × the l2 sensitivity (σ = {calibration.scale}, "
            f"Δ² = {calibration.sensitivity2} in lattice steps of {facts.step:.4g}), on exact integer sums. "
            f"Kernel: {facts.kernel.describe()}."
        )

    def _assumptions(self) -> str:
        b = self.facts.bounds
        return (
            f"Assumed public: the bounds ‖k‖ ≤ {b.key_norm:g}, ‖q‖ ≤ {b.query_norm:g}, ‖v‖ ≤ {b.value_norm:g}, their "
            "centers, the kernel's coefficients, landmarks or centroids. If any of these was read off the private "
            "rows, the guarantee does not hold. Rows beyond the bounds were clipped; how many is not recorded."
        )

    def _limits(self) -> str:
        notes = "".join(f" Afterwards: {note}." for note in self.facts.notes)
        return (
            "Not covered: the error of the kernel against exact attention (standard errors show the noise only), the "
            "time and memory the build took, errors shown to whoever ran it, and copies of the rows kept elsewhere."
            + notes
        )
