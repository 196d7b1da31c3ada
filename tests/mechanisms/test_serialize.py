"""Settings: every mistake is one line that names the key."""

import pytest

from splitveil.check import UsageError
from splitveil.mechanisms import Clip, Quantize, TopK, from_settings, to_settings


def test_defaults_are_filled_in() -> None:
    assert to_settings(from_settings({"name": "clip", "radius": 2})) == {"name": "clip", "radius": 2, "norm": 2}


def test_whole_numbers_written_as_floats_are_whole() -> None:
    """JSON from other languages knows one kind of number."""
    assert to_settings(from_settings({"name": "quantize", "levels": 8.0})) == to_settings(Quantize(levels=8))
    assert to_settings(from_settings({"name": "top-k", "keep": 16.0})) == to_settings(TopK(keep=16))
    assert to_settings(from_settings({"name": "clip", "radius": 1.0, "norm": 1.0})) == to_settings(
        Clip(radius=1.0, norm=1)
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs a name"),
        ({"name": 3}, "needs a name"),
        ({"name": "gausian", "std": 1.0}, "did you mean 'gaussian'"),
        ({"name": "gaussian"}, "gaussian needs std"),
        ({"name": "gaussian", "sdt": 1.0}, "no option 'sdt'; did you mean 'std'"),
        ({"name": "gaussian", "std": "much"}, "gaussian std must be a number, got 'much'"),
        ({"name": "gaussian", "std": True}, "must be a number"),
        ({"name": "gaussian", "std": -0.1}, "gaussian std must be > 0, got -0.1"),
        ({"name": "identity", "std": 1.0}, "takes no options"),
        ({"name": "quantize", "levels": 2.5}, "must be a whole number, got 2.5"),
        ({"name": "quantize", "levels": float("nan")}, "must be a whole number"),
        ({"name": "chain"}, "chain takes `parts`"),
        ({"name": "chain", "parts": []}, "at least one mechanism"),
        ({"name": "chain", "parts": ["clip"]}, "mapping with a name"),
        ({"name": "chain", "parts": [{"name": "clip"}]}, "clip needs radius"),
        ({"name": "chain", "parts": [], "std": 1.0}, "chain takes `parts`"),
    ],
)
def test_a_mistake_is_told_in_one_line(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_settings(settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
