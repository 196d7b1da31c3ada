"""`splitveil attack RUN --probe animal=2,3,4,5,6,7`: is it an animal? Read from what is sent, without painting it.

right = share of victims for whom the answer is right        chance = the same for the attacker's most common answer

Each question is put by a linear probe and by one with a hidden layer, both an outsider's.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from splitveil.check import UsageError
from splitveil.cli.display import out
from splitveil.cli.runs import Run
from splitveil.data import ImageSet
from splitveil.evaluation import Result, Suite, attribute_probes

WORDS = re.compile(r"([A-Za-z][A-Za-z0-9-]*)=(\s*\d+(?:\s*,\s*\d+)*\s*)")


@dataclass(frozen=True)
class Attribute:
    """What is asked: whether the class is among these."""

    name: str
    classes: tuple[int, ...]


def read_probes(words: Sequence[str], *, queries: str | None = None) -> tuple[Attribute, ...]:
    """Questions, each as in "animal=2,3,4,5,6,7".

    >>> read_probes(["animal=2,3"])
    (Attribute(name='animal', classes=(2, 3)),)
    """
    if words and queries is not None:
        raise UsageError("--queries plays attacks of its own and asks nothing; leave --probe away")
    asked: dict[str, Attribute] = {}
    for each in words:
        found = WORDS.fullmatch(each)
        if found is None:
            raise UsageError(f"--probe wants a name and class numbers such as animal=2,3,4,5,6,7, got {each!r}")
        name, numbers = found.groups()
        if name in asked:
            raise UsageError(f"--probe: {name!r} is asked twice; give each question a name of its own")
        asked[name] = Attribute(name, tuple(sorted({int(number) for number in numbers.split(",")})))
    return tuple(asked.values())


def with_probes(suite: Suite, asked: Sequence[Attribute], opened: Run) -> Suite:
    """The suite, and these questions beside it; numbers that are no class of the run's images are refused."""
    if not asked:
        return suite
    data = opened.data
    if not bool((data.auxiliary.labels >= 0).all()):
        raise UsageError("--probe: the attacker's own images have no classes to learn from; leave it away")
    for each in asked:
        if each.classes[-1] >= data.n_classes:
            last = f"its classes are 0 to {data.n_classes - 1}"
            raise UsageError(f"--probe {each.name}: {data.name} has no class {each.classes[-1]}; {last}")
        suite = suite.asking(attribute_probes(each.name, each.classes, n_classes=data.n_classes), name=each.name)
    return suite


def show_probes(result: Result, asked: Sequence[Attribute], data: ImageSet) -> None:
    """One line for each question: how many victims it holds for, and how often the answer was right."""
    for each in asked:
        found = {inference.name: inference for inference in result.inferences}
        linear, hidden = (found[f"{each.name}-probe-{kind}"] for kind in ("linear", "mlp"))
        y = data.victims.labels[: result.n_victims]
        share = torch.isin(y, torch.tensor(each.classes, device=y.device)).float().mean().item()
        classes = f"class{'es' if len(each.classes) > 1 else ''} {', '.join(map(str, each.classes))}"
        right = f"right {linear.score.mean:.1%} (linear), {hidden.score.mean:.1%} (a hidden layer)"
        told = f"{each.name} ({classes}): {share:.1%} of the victims; {right}, chance {linear.chance:.1%}"
        out().print(told, markup=False, soft_wrap=True)
