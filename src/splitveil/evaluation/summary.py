"""From the scores of every victim, attack and seed to one result."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import fmean

import torch

from splitveil.attacks import Threat
from splitveil.bounds import Bound
from splitveil.evaluation import flags
from splitveil.evaluation.flags import Flag, FlagName
from splitveil.evaluation.result import AttackResult, Result
from splitveil.evaluation.rivals import rivals, uses_client
from splitveil.evaluation.roles import Roles
from splitveil.evaluation.suite import Trial
from splitveil.evaluation.trial import Outcome
from splitveil.metrics import Interval, interval, is_upsampled

PACKAGES = ("splitveil", "torch", "torchmetrics")


@dataclass(frozen=True)
class Played:
    """A trial with its outcomes, one per seed."""

    trial: Trial
    outcomes: tuple[Outcome, ...]

    def interval(self, metric: str) -> Interval | None:
        """Mean over victims and seeds; None where the images do not have this metric."""
        if metric not in self.outcomes[0].scores:
            return None
        return interval(torch.stack([outcome.scores[metric] for outcome in self.outcomes]))

    @property
    def means(self) -> list[float]:
        """Mean MSE of each seed."""
        return [outcome.scores["mse"].mean().item() for outcome in self.outcomes]


@dataclass(frozen=True)
class Context:
    """What a result says beside its attacks."""

    suite: str
    client: str
    roles: Roles
    n_victims: int
    prior_mse: float
    is_random: bool
    seeds: tuple[int, ...]
    undefended: Result | None
    bounds: tuple[Bound, ...]


def summarize(played: tuple[Played, ...], context: Context) -> Result:
    """One result with headline, oracle, flags and what could not be judged."""
    mse = {each.trial: _known(each.interval("mse")) for each in played}
    attacks = tuple(_attack_result(each, mse, context) for each in played)
    best = min(attacks, key=lambda attack: attack.mse.mean)
    alone = [attack for attack in attacks if attack.releases == 1] or list(attacks)
    whole = flags.no_averaging(context.is_random, [attack.releases for attack in attacks])
    reasons = [flag for flag in (*best.flags, _could_pass(best, attacks), whole) if flag]
    return Result(
        suite=context.suite,
        client=context.client,
        data=context.roles.name,
        data_sha256=context.roles.sha256,
        image_shape=context.roles.auxiliary.image_shape,
        n_victims=context.n_victims,
        seeds=context.seeds,
        prior_mse=context.prior_mse,
        attacks=attacks,
        headline=best.name,
        headline_one_release=min(alone, key=lambda attack: attack.mse.mean).name,
        oracle_mse=_oracle(played),
        unreliable=bool(reasons),
        reasons=tuple(str(flag) for flag in reasons),
        not_checked=_not_checked(played, context),
        lpips_upsampled=is_upsampled(context.roles.auxiliary.image_shape),
        device=str(context.roles.auxiliary.device),
        versions=_versions(),
        bounds=context.bounds,
    )


def _could_pass(best: AttackResult, attacks: tuple[AttackResult, ...]) -> Flag | None:
    """Whether an unfinished attack may yet beat the headline; where that is unfinished itself, it says so already."""
    cut = [attack for attack in attacks if any(flag.name is FlagName.STILL_FALLING for flag in attack.flags)]
    return None if best in cut else flags.could_pass(best.mse, {attack.name: attack.mse for attack in cut})


def _attack_result(each: Played, mse: dict[Trial, Interval], context: Context) -> AttackResult:
    error, healths = mse[each.trial], [outcome.health for outcome in each.outcomes]
    prior = context.prior_mse
    peaks = [outcome.peak_memory_mb for outcome in each.outcomes if outcome.peak_memory_mb is not None]
    return AttackResult(
        attack=each.trial.attack.name,
        knowledge=each.trial.threat.name,
        releases=each.trial.threat.releases,
        seeds=context.seeds,
        mse=error,
        psnr=_known(each.interval("psnr")),
        ssim=each.interval("ssim"),
        lpips=each.interval("lpips"),
        leak=Interval(1 - error.mean / prior, 1 - error.high / prior, 1 - error.low / prior),
        train_mse=_mean([health.train_mse for health in healths]),
        selection_mse=_mean([health.selection_mse for health in healths]),
        steps=max(health.steps for health in healths),
        seconds=sum(outcome.seconds for outcome in each.outcomes),
        peak_memory_mb=max(peaks) if peaks else None,
        flags=_flags(each, mse, context),
        peak_is_at_most=any(outcome.peak_is_at_most for outcome in each.outcomes),
    )


def _flags(each: Played, mse: dict[Trial, Interval], context: Context) -> tuple[Flag, ...]:
    error, healths, threat = mse[each.trial], [outcome.health for outcome in each.outcomes], each.trial.threat
    raised = [
        next((flag for health in healths if (flag := flags.still_falling(health))), None),
        next((flag for health in healths if (flag := flags.overfitted(health))), None),
        flags.no_better_than_prior(error, context.prior_mse),
        flags.fails_undefended(_undefended_leak(each.trial, context.undefended)),
        flags.black_beats_white(error, {black.name: mse[black] for black in rivals(each.trial, mse)}),
        flags.unstable(each.means),
        flags.below_bound(error, context.bounds, releases=threat.releases, label_known=threat.label_known),
    ]
    return tuple(flag for flag in raised if flag is not None)


def _undefended_leak(trial: Trial, undefended: Result | None) -> float | None:
    found = [attack for attack in undefended.attacks if attack.name == trial.name] if undefended else []
    return found[0].leak.mean if found else None


def _not_checked(played: tuple[Played, ...], context: Context) -> tuple[str, ...]:
    trials = [each.trial for each in played]
    judged = {
        FlagName.FAILS_UNDEFENDED: any(_undefended_leak(t, context.undefended) is not None for t in trials),
        FlagName.BLACK_BEATS_WHITE: any(rivals(trial, trials) for trial in trials),
        FlagName.UNSTABLE: len(context.seeds) > 1,
        FlagName.BELOW_BOUND: any(_judges(bound, trial.threat) for bound in context.bounds for trial in trials),
    }
    missing = [str(name) for name, was_judged in judged.items() if not was_judged]
    alone = [trial.name for trial in trials if uses_client(trial) and not rivals(trial, trials)]
    if judged[FlagName.BLACK_BEATS_WHITE] and alone:  # others were checked
        missing.append(f"{FlagName.BLACK_BEATS_WHITE} ({', '.join(alone)})")
    return tuple(missing)


def _judges(bound: Bound, threat: Threat) -> bool:
    return flags.judges(bound, threat.releases, label_known=threat.label_known)


def _oracle(played: tuple[Played, ...]) -> Interval:
    """Mean over victims and seeds of the lowest error any attack had."""
    tables = [torch.stack([outcome.scores["mse"] for outcome in each.outcomes]) for each in played]
    return interval(torch.stack(tables).amin(0))


def _known(found: Interval | None) -> Interval:
    assert found is not None, "every image has this metric"
    return found


def _mean(values: list[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None


def _versions() -> dict[str, str]:
    return {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # run from a source tree
        return "not installed"
