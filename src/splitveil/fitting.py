"""One small fit loop for networks trained on the side: attackers' decoders, adversaries, priors.

    lr(t)      warms up, stays until the selection score stops falling (or the budget's last share begins), decays to 0
    shadow_t = d_t shadow_{t−1} + (1 − d_t) weights_t,      d_t = min(ema, (1 + t)/(10 + t))
    result     the shadow with the lowest score on images that are neither fitted nor attacked

The rate stays high until the score is flat, so "still falling when it stopped" can be told from "finished": a rate that
follows a fixed curve to zero flattens every loss. No step waits for the device; numbers are read at checks.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from splitveil.check import RunError, at_least, fraction, positive
from splitveil.pausing import pause
from splitveil.randomness import stream
from splitveil.recording import recorded
from splitveil.writing import read_tensors, write_tensors

SAVE_EVERY = 20.0  # seconds between two saved states; they are saved at checks
EARLY = (10, 20, 30, 50)  # steps after which the score is read as well: few images are soon learned by heart
COMPILED_FROM = 2000  # steps: fewer do not win back what compiling takes

Loss = Callable[[nn.Module, int], Tensor]  # (network, step) → mean loss of that step's batch
Score = Callable[[nn.Module], Tensor]  # network in eval mode → one number, lower is better


@dataclass(frozen=True)
class Plan:
    """How long and how a network is fitted."""

    steps: int = 10_000  # at most
    seconds: float | None = None  # at most; a limit in seconds makes the result depend on the machine
    lr: float = 1e-3
    weight_decay: float = 0.0
    warmup: int = 50  # steps
    cooldown: float = 0.25  # share of all steps in which the rate decays
    ema: float = 0.998
    check_every: int = 100  # steps
    patience: int = 5  # checks that bring no more than min_gain together
    min_gain: float = 0.01  # of the score
    bfloat16: bool | None = None  # autocast, weights stay float32; None: where the attack says that it suits
    channels_last: bool | None = None  # likewise
    momentum: float = 0.9  # Adam's first; against a critic it swings, so there it is 0

    def __post_init__(self) -> None:
        for name in ("steps", "check_every", "patience"):
            at_least(name, getattr(self, name), 1)
        for name in ("cooldown", "ema", "momentum"):
            fraction(name, getattr(self, name))
        positive("lr", self.lr)
        positive("seconds", 1.0 if self.seconds is None else self.seconds)

    def suited(self, *, bfloat16: bool = False, channels_last: bool = False) -> "Plan":
        """The same where it says so, and with these where it leaves them open."""
        rounded = bfloat16 if self.bfloat16 is None else self.bfloat16
        return replace(
            self, bfloat16=rounded, channels_last=channels_last if self.channels_last is None else self.channels_last
        )


@dataclass(frozen=True)
class Check:
    """What was read at one check."""

    step: int  # steps done
    train_loss: float  # mean since the last check
    score: float  # of the shadow
    seconds: float
    what: str = ""  # was fitted, where it is not what the watcher waits for but something it needs first


@dataclass(frozen=True)
class Fitted:
    """A fitted network (the best shadow, in eval mode) and how the fit went."""

    network: nn.Module
    checks: tuple[Check, ...]
    stopped: Literal["plateau", "steps", "seconds"]
    still_falling: bool  # the budget ended before the score was flat

    @property
    def best(self) -> Check:
        """The check whose weights were kept."""
        return min(self.checks, key=lambda check: check.score)


def fit(
    network: nn.Module,
    *,
    loss: Loss,
    score: Score,
    plan: Plan,
    progress: Callable[[Check], None] | None = None,
    state: Path | None = None,
    sample: tuple[Tensor, ...] | None = None,
) -> Fitted:
    """Fit `network` in place until the selection score is flat or the budget ends.

    With `sample`, inputs of the shape that every step gives the network, a GPU records the network's forward and
    backward pass once, compiled if there are many steps, and replays them: two launches a step, not some hundred.

    Guarantees: a fit that is stopped and called again with the same `state` file ends where an uninterrupted one does,
    if `loss` and `score` are functions of (network, step) alone; the device is waited for at checks only.
    """
    run, tell = _Run(network, plan), progress or (lambda check: None)
    run.load(state)
    done = run.is_done()
    with recorded(network, None if done else sample, bfloat16=run.is_rounded, is_compiled=plan.steps >= COMPILED_FROM):
        run.born = time.monotonic()  # recording has its time to itself
        while not done:
            run.step(loss)
            done = run.is_done()
            is_due = done or run.step_count % plan.check_every == 0 or run.step_count in EARLY
            check = run.check(score) if is_due else None
            try:
                pause(time.monotonic() - run.born) if check is None else tell(check)
            except BaseException:  # whoever watches ends the fit here: nothing of it is lost
                run.save(state, now=True)
                raise
            if is_due:
                run.save(state, now=done)
    return run.finish()


class Shuffled:
    """Batches of indices, epoch by epoch without replacement: a function of (seed, step) alone."""

    def __init__(self, n: int, *, size: int, seed: int, device: torch.device) -> None:
        self.size = min(int(at_least("batch size", size, 1)), int(at_least("number of images", n, 1)))
        self._n, self._seed, self._device = n, seed, device
        self._epoch, self._order = -1, torch.empty(0)

    def __call__(self, step: int) -> Int[Tensor, " batch"]:
        epoch, place = divmod(step, self._n // self.size)
        if epoch != self._epoch:
            rng = stream(self._seed, "order", epoch, device=self._device)
            self._epoch, self._order = epoch, torch.randperm(self._n, generator=rng, device=self._device)
        return self._order[place * self.size : (place + 1) * self.size]


def is_flat(scores: list[float], *, patience: int, min_gain: float) -> bool:
    """Whether the last `patience` scores together fell by no more than `min_gain` of the best one before them.

    >>> is_flat([1.0, 0.9, 0.8], patience=2, min_gain=0.01), is_flat([0.8, 0.8, 0.8], patience=2, min_gain=0.01)
    (False, True)
    """
    if len(scores) <= patience:
        return False
    before, after = min(scores[:-patience]), min(scores[-patience:])
    return before - after <= min_gain * abs(before)


class _Run:
    """The moving parts of one fit."""

    def __init__(self, network: nn.Module, plan: Plan) -> None:
        self.plan, self.device, self.is_rounded = plan, next(network.parameters()).device, bool(plan.bfloat16)
        self.network = network.to(memory_format=torch.channels_last) if plan.channels_last else network  # type: ignore[call-overload]
        own, decay = network.parameters(), plan.weight_decay
        self.optimizer = torch.optim.AdamW(own, lr=plan.lr, betas=(plan.momentum, 0.99), weight_decay=decay, fused=True)
        self.live = {name: value for name, value in network.state_dict().items() if value.is_floating_point()}
        self.shadow = {name: value.clone() for name, value in self.live.items()}
        self.best = {name: value.clone() for name, value in self.live.items()}
        self.total = torch.zeros((), device=self.device)
        self.checks: list[Check] = []
        self.step_count = self.cool_steps = 0
        self.cool_from: int | None = None
        self.stopped: Literal["plateau", "steps", "seconds"] = "plateau"
        self.born = self.began = self.saved = time.monotonic()
        network.train()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def is_done(self) -> bool:
        cooled = self.cool_from is not None and self.step_count >= self.cool_from + self.cool_steps
        return cooled or (self.plan.seconds is not None and self.seconds >= self.plan.seconds)

    def step(self, loss: Loss) -> None:
        if self.cool_from is None:
            self._watch_budget()
        self.optimizer.param_groups[0]["lr"] = self.plan.lr * self._rate()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_rounded):
            value = loss(self.network, self.step_count)
        self.optimizer.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step_count += 1
        decay = min(self.plan.ema, self.step_count / (9 + self.step_count))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.shadow.values()), list(self.live.values()), 1 - decay)
            self.total += value.detach()

    def _rate(self) -> float:
        warm = min(1.0, (self.step_count + 1) / max(1, self.plan.warmup))
        cooled = 0.0 if self.cool_from is None else (self.step_count - self.cool_from) / self.cool_steps
        return warm * (1 - cooled)

    def _watch_budget(self) -> None:
        """Begin to cool down where the budget's last share begins."""
        if self.step_count >= math.floor((stay := 1 - self.plan.cooldown) * self.plan.steps):
            self._cool("steps")
        elif self.plan.seconds is not None and self.seconds >= stay * self.plan.seconds:
            self._cool("seconds")

    def _cool(self, reason: Literal["plateau", "steps", "seconds"]) -> None:
        share = self.plan.cooldown / (1 - self.plan.cooldown)
        left = self.plan.steps - self.step_count
        self.cool_from, self.stopped = self.step_count, reason
        self.cool_steps = max(1, left if reason == "steps" else min(left, round(share * self.step_count)))

    def _is_flat(self) -> bool:
        last = self.step_count if self.cool_from is None else self.cool_from
        judged = (check for check in self.checks if check.step <= last and check.step % self.plan.check_every == 0)
        return is_flat([check.score for check in judged], patience=self.plan.patience, min_gain=self.plan.min_gain)

    def check(self, score: Score) -> Check:
        """Read the loss, score the shadow, keep it if it is the best, and see whether the score is flat."""
        train_loss = self.total.item() / (self.step_count - (self.checks[-1].step if self.checks else 0))
        self.total.zero_()
        value = self._score_shadow(score)
        if not (math.isfinite(train_loss) and math.isfinite(value)):
            where = f"step {self.step_count} (loss {train_loss}, score {value})"
            raise RunError(f"the fit diverged at {where}; lower the lr")
        if value < min((check.score for check in self.checks), default=math.inf):
            torch._foreach_copy_(list(self.best.values()), list(self.shadow.values()))
        self.checks.append(Check(self.step_count, train_loss, value, self.seconds))
        if self.cool_from is None and self._is_flat():
            self._cool("plateau")
        return self.checks[-1]

    @torch.no_grad()
    def _score_shadow(self, score: Score) -> float:
        kept = {name: value.clone() for name, value in self.live.items()}
        torch._foreach_copy_(list(self.live.values()), list(self.shadow.values()))
        value = score(self.network.eval()).item()
        self.network.train()
        torch._foreach_copy_(list(self.live.values()), list(kept.values()))
        return value

    def finish(self) -> Fitted:
        if self.cool_from is None:  # the clock ran out within one step
            self.stopped = "seconds"
        is_falling = self.stopped != "plateau" and not self._is_flat()
        torch._foreach_copy_(list(self.live.values()), list(self.best.values()))
        self.network.eval()
        return Fitted(self.network, tuple(self.checks), self.stopped, is_falling)

    def _tensors(self) -> dict[str, Tensor]:
        """Everything that moves, by name; the optimizer's moments under their parameter's position."""
        parts = {"live": self.live, "shadow": self.shadow, "best": self.best}
        tensors = {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}
        tensors["total"] = self.total
        for place, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{place}/{name}": value for name, value in moments.items()}
        return tensors

    def save(self, path: Path | None, *, now: bool = False) -> None:
        """Write the state, at most every SAVE_EVERY seconds unless `now`; a killed write leaves the last one."""
        if path is None or (not now and time.monotonic() - self.saved < SAVE_EVERY):
            return
        names = ("step_count", "cool_from", "cool_steps", "stopped", "seconds")
        facts = {name: getattr(self, name) for name in names} | {"checks": [asdict(check) for check in self.checks]}
        write_tensors(path, self._tensors(), {"fit": json.dumps(facts)})
        self.saved = time.monotonic()

    def load(self, path: Path | None) -> None:
        """Go on from a saved state; where there is none that can be read, or another network's, the fit begins anew."""
        stored, words = (path and read_tensors(path, device=self.device)) or ({}, {})
        own, facts = self._tensors(), json.loads(words.get("fit", "{}"))  # the optimizer has no moments yet
        moving = {name: value.shape for name, value in stored.items() if not name.startswith("optimizer/")}
        if not facts or moving != {name: value.shape for name, value in own.items()}:
            return
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(stored.pop(name))
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": self._moments(stored)})
        self.checks = [Check(**check) for check in facts["checks"]]
        self.step_count, self.cool_from, self.cool_steps = facts["step_count"], facts["cool_from"], facts["cool_steps"]
        self.stopped, self.began = facts["stopped"], time.monotonic() - facts["seconds"]

    def _moments(self, stored: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
        """The optimizer's, in the memory order of their parameters, which a fused step relies on."""
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in stored.items():
            _, place, moment = name.split("/")
            like = torch.empty_like(self.optimizer.param_groups[0]["params"][int(place)]) if value.ndim else value
            moments.setdefault(int(place), {})[moment] = like.copy_(value)
        return moments
