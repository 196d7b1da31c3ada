"""A result as tables: every attack, worst first, and what was inferred without an image."""

from rich.box import SIMPLE
from rich.console import JustifyMethod
from rich.table import Table

from splitveil.cli.display import out
from splitveil.evaluation import FlagName, Result

LEGEND = (
    "s: all pieces of an attack, without scoring; a prior that attacks share counts where it was learned. "
    "MB: the peak of the device, or of the process on a CPU (≤: since it began)"
)


def show_result(result: Result) -> None:
    """A table of every attack, worst first, with what should be known before it is believed."""
    table = Table(title=f"{result.suite} suite on {result.data}, {result.n_victims} victims", box=SIMPLE)
    for name in ("attack, by whom, flags", "leak", "MSE [95 %]", "SSIM", "LPIPS", "s", "MB"):
        table.add_column(name, justify="left" if name.startswith("attack") else "right", overflow="fold")
    for each in sorted(result.attacks, key=lambda a: a.mse.mean):
        told = [each.attack, f"  {each.knowledge}", *(f"  ⚑ {flag.name}" for flag in each.flags)]
        table.add_row(
            "\n".join(told),
            f"{each.leak.mean:.2f}",
            f"{each.mse.mean:.4f}\n[{each.mse.low:.4f}, {each.mse.high:.4f}]",
            "–" if each.ssim is None else f"{each.ssim.mean:.2f}",
            "–" if each.lpips is None else f"{each.lpips.mean:.2f}",
            f"{each.seconds:.0f}",
            megabytes(each.peak_memory_mb, is_at_most=each.peak_is_at_most),
        )
    console = out()
    console.print(table)
    _show_inferences(result)
    console.print(LEGEND, markup=False, style="dim", soft_wrap=True)
    console.print(f"worst case: {result.headline}, leak {result.best.leak.mean:.2f} (0 nothing, 1 exact)", markup=False)
    console.print(f"best attack for each victim (an oracle: nobody knows which): MSE {result.oracle_mse}", markup=False)
    for reason in result.reasons:
        console.print(f"not to be believed yet: {reason}", markup=False)
    for each in result.attacks:
        for flag in (flag for flag in each.flags if flag.name is FlagName.BLACK_BEATS_WHITE):
            console.print(f"{each.name}: {flag}", markup=False, style="dim")
    if result.not_checked:
        console.print(f"not checked: {'; '.join(result.not_checked)}", markup=False, style="dim")
    if result.not_played:
        console.print(f"not played: {_absent(result)}", markup=False, style="dim", soft_wrap=True)


def _absent(result: Result) -> str:
    """Attacks by the reason why they were left out; each once, whoever would have played it."""
    groups: dict[str, list[str]] = {}
    for each in result.not_played:
        groups.setdefault(each.reason, []).append(each.name.partition(" (")[0])
    return "; ".join(f"{', '.join(dict.fromkeys(names))} ({reason})" for reason, names in groups.items())


def _show_inferences(result: Result) -> None:
    """What was concluded without an image, or from the best reconstructions."""
    if not result.inferences:
        return
    table = Table(title="inferences: share of victims guessed right")
    for name in ("inference", "from", "knowledge", "right [95 %]", "chance", "ceiling", "s", "MB"):
        side: JustifyMethod = "left" if name in ("inference", "from", "knowledge") else "right"
        table.add_column(name, justify=side, overflow="fold")
    for each in result.inferences:
        flags = "".join(f"\n  ⚑ {flag.name}" for flag in each.flags)
        table.add_row(
            each.name + flags,
            each.attack or "z_sent",
            each.knowledge,
            f"{each.score.mean:.1%} [{each.score.low:.1%}, {each.score.high:.1%}]",
            f"{each.chance:.1%}",
            "–" if each.ceiling is None else f"{each.ceiling.mean:.1%}",
            f"{each.seconds:.0f}",
            megabytes(each.peak_memory_mb, is_at_most=each.peak_is_at_most),
        )
    out().print(table)


def megabytes(peak: float | None, *, is_at_most: bool) -> str:
    """A peak of memory as a cell; a dash where it is not known."""
    if peak is None:
        return "–"
    return f"{'≤ ' if is_at_most else ''}{peak:.0f}"
