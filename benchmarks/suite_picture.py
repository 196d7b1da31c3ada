"""The table of the whole suite as a picture, and as docs/attacks.md has it.

python benchmarks/suite_picture.py            docs/suite.png from the cells in results/suite
python benchmarks/suite_picture.py --table    the cells as markdown
"""

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
CELLS, PICTURE = ROOT / "results" / "suite", ROOT / "docs" / "suite.png"
CLIENTS = {"noise": "#4878a8", "surrogate": "#2a9d5c", "adversary": "#c44e52"}
MARKS = {"loss still falling": "²", "no better than the prior": "³", "train ≪ validation": "⁴"}
OUTGROWN = (  # stronger since cells tell what was chosen
    "optimization-",
    "generator-latent",
    "decoder-residual-label",
    "decoder-residual--black-box-1024",
    "decoder-residual--black-box-128",
)
GROUPS: dict[str, dict[str, str]] = {
    "one release": {
        "decoder-unet-long--white-box-insider": "U-Net, four times as long, insider",
        "decoder-unet-long--white-box-outsider": "U-Net, four times as long, outsider",
        "decoder-unet--white-box-insider": "U-Net, insider",
        "decoder-unet--white-box-outsider": "U-Net, outsider",
        "decoder-residual--white-box-insider": "residual decoder, insider",
        "decoder-residual--white-box-outsider": "residual decoder, outsider",
        "decoder-conv--white-box-insider": "plain convolutions, insider",
        "decoder-conv--white-box-outsider": "plain convolutions, outsider",
        "decoder-unet-label--white-box-insider-label-known": "U-Net told the label, insider",
        "decoder-unet-label--white-box-outsider-label-known": "U-Net told the label, outsider",
        "decoder-residual-label--white-box-insider-label-known": "residual decoder told the label, insider",
        "decoder-residual-label--white-box-outsider-label-known": "residual decoder told the label, outsider",
        "decoder-residual-logits--white-box-insider-head-known": "residual decoder told the logits, insider",
        "decoder-residual-logits--white-box-outsider-head-known": "residual decoder told the logits, outsider",
        "decoder-residual-ssim--white-box-insider": "residual decoder, SSIM in its loss, insider",
        "decoder-residual-ssim--white-box-outsider": "residual decoder, SSIM in its loss, outsider",
        "decoder-residual-lpips--white-box-insider": "residual decoder, LPIPS in its loss, insider",
        "decoder-residual-lpips--white-box-outsider": "residual decoder, LPIPS in its loss, outsider",
        "generator-decoder--white-box-outsider": "residual decoder against a critic",
        "diffusion-decoder--white-box-outsider": "diffusion prior from a decoder's picture ¹",
        "diffusion--white-box-outsider": "diffusion prior ¹",
        "generator-latent--white-box-outsider": "generator, searched ¹",
        "optimization-decoder--white-box-outsider": "search from a decoder's picture",
        "optimization-likelihood--white-box-outsider": "search under a Gaussian",
        "optimization-tv--white-box-outsider": "search under total variation",
        "optimization-dip--white-box-outsider": "deep image prior ¹",
        "ridge--white-box-insider": "least squares, insider",
        "ridge--white-box-outsider": "least squares, outsider",
        "nearest--white-box-insider": "nearest image, insider",
        "nearest--white-box-outsider": "nearest image, outsider",
        "nearest-8--white-box-insider": "mean of the eight nearest, insider",
    },
    "few queries, or none": {
        "decoder-residual--black-box-4096-outsider": "residual decoder, 4,096 queries",
        "decoder-unet--black-box-4096-outsider": "U-Net, 4,096 queries",
        "decoder-residual--black-box-1024-outsider": "residual decoder, 1,024 queries",
        "decoder-residual--black-box-128-outsider": "residual decoder, 128 queries",
        "ridge--black-box-4096-outsider": "least squares, 4,096 queries",
        "ridge--black-box-1024-outsider": "least squares, 1,024 queries",
        "ridge--black-box-128-outsider": "least squares, 128 queries",
        "shadow-head--query-free-outsider-head-known": "shadow under the server's head, no query",
        "shadow--query-free-outsider": "shadow alone, no query",
    },
    "many releases": {
        "decoder-residual-mean4--white-box-insider-4-releases": "residual decoder, mean of 4, insider",
        "decoder-residual-mean4--white-box-outsider-4-releases": "residual decoder, mean of 4, outsider",
        "decoder-unet-mean16--white-box-insider-16-releases": "U-Net, mean of 16, insider",
        "decoder-unet-mean16--white-box-outsider-16-releases": "U-Net, mean of 16, outsider",
        "decoder-residual-mean16--white-box-insider-16-releases": "residual decoder, mean of 16, insider",
        "decoder-residual-mean16--white-box-outsider-16-releases": "residual decoder, mean of 16, outsider",
        "optimization-decoder--white-box-outsider-16-releases": "search from a decoder's picture, 16 releases",
        "diffusion--white-box-outsider-16-releases": "diffusion prior, 16 releases ¹",
        "decoder-residual-long-mean64--white-box-insider-64-releases": "four times as long, mean of 64, insider",
        "decoder-residual-mean64--white-box-insider-64-releases": "residual decoder, mean of 64, insider",
        "decoder-residual-mean64--white-box-outsider-64-releases": "residual decoder, mean of 64, outsider",
        "ridge-mean4--white-box-outsider-4-releases": "least squares, mean of 4",
        "ridge-mean16--white-box-outsider-16-releases": "least squares, mean of 16",
        "ridge-mean64--white-box-outsider-64-releases": "least squares, mean of 64",
    },
}
PROBES = {
    "label-probe-linear--white-box-outsider": "linear probe for the class, outsider",
    "label-probe-linear--white-box-insider": "linear probe, insider",
    "label-probe-mlp--white-box-outsider": "probe with a hidden layer, outsider",
    "label-probe-mlp--white-box-insider": "probe with a hidden layer, insider",
}


def cell(client: str, slug: str) -> dict[str, Any] | None:
    """What was measured, if it was."""
    path = CELLS / f"{client}-seed0--{slug}.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def table() -> None:
    """Markdown: MSE with its interval, leak, share of pictures whose class is named, flags."""
    for slug, name in (each for group in GROUPS.values() for each in group.items()):
        print(f"| {name} | " + " | ".join(_words(slug, cell(client, slug)) for client in CLIENTS) + " |")
    for slug, name in PROBES.items():
        print(f"| {name} | " + " | ".join(_right(cell(client, slug)) for client in CLIENTS) + " |")


def _right(found: dict[str, Any] | None) -> str:
    if found is None:
        return "not measured"
    probe = found["inferences"][0]
    return f"{round(100 * probe['score']['mean'])} % right" + _marks(probe["flags"])


def _marks(flags: list[dict[str, str]]) -> str:
    return "".join(f" {MARKS[flag['name']]}" for flag in flags)


def _words(slug: str, found: dict[str, Any] | None) -> str:
    if found is None:
        return "not measured"
    attack = found["attack"]
    named = next(each for each in found["inferences"] if each["name"] == "classifier-on-reconstruction")
    mse, leak = attack["mse"], f"{attack['leak']['mean']:.2f}".replace("-", "−")
    numbers = f"{mse['mean']:.4f} [{mse['low']:.4f}, {mse['high']:.4f}]"
    older = " ⁵" if slug.startswith(OUTGROWN) and "chosen" not in found else ""
    return f"{numbers}, {leak}, {round(100 * named['score']['mean'])} %{_marks(attack['flags'])}{older}"


def draw() -> None:
    """MSE of every attack on every client; hollow where it is flagged."""
    figure = Figure(figsize=(9, 10.5), layout="constrained")
    heights = [len(group) for group in GROUPS.values()]
    axes = figure.subplots(len(GROUPS), 1, sharex=True, height_ratios=heights)
    for ax, (title, group) in zip(axes, GROUPS.items(), strict=True):
        for place, slug in enumerate(group):
            if not any(cell(client, slug) for client in CLIENTS):
                ax.text(0.005, place, "not measured", fontsize=8, color="gray", va="center")
            for client, color in CLIENTS.items():
                if (found := cell(client, slug)) is not None:
                    mse, is_flagged = found["attack"]["mse"], bool(found["attack"]["flags"])
                    ax.plot([mse["low"], mse["high"]], [place, place], color=color, lw=1)
                    ax.plot(mse["mean"], place, "o", color=color, mfc="white" if is_flagged else color, ms=5)
                    prior = found["prior_mse"]
        ax.axvline(prior, color="gray", lw=0.8, ls=":")
        ax.set(yticks=range(len(group)), yticklabels=[name.removesuffix(" ¹") for name in group.values()], xscale="log")
        ax.set_title(title, fontsize=10, loc="left")
        ax.set_ylim(len(group) - 0.4, -0.6)
        ax.tick_params(labelsize=8)
        ax.grid(axis="both", color="#dddddd", lw=0.5)
    top = axes[0].get_xaxis_transform()
    axes[0].text(prior, 1.01, "mean image", fontsize=8, color="gray", ha="center", transform=top)
    for client, color in CLIENTS.items():
        axes[0].plot([], [], "o", color=color, label=client)
    axes[0].plot([], [], "o", color="black", mfc="white", label="flagged")
    axes[0].legend(fontsize=8, loc="lower left")
    ticks = (0.005, 0.01, 0.02, 0.05, 0.1)
    axes[-1].set_xticks(ticks, [str(tick) for tick in ticks])
    axes[-1].minorticks_off()
    axes[-1].set_xlabel("MSE of the reconstruction: left is worse for the client")
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print markdown")
    table() if parser.parse_args().table else draw()


if __name__ == "__main__":
    main()
