import importlib.util
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_loop.py"


def test_the_plain_loop_cuts_the_leak_and_keeps_the_classes_apart() -> None:
    spec = importlib.util.spec_from_file_location("plain_loop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    free, _ = module.main(0.0)
    leak, accuracy = module.main(3.0)
    assert leak < 0.5 * free
    assert accuracy > 0.95


def test_it_is_short_and_never_touches_the_trainer() -> None:
    text = EXAMPLE.read_text()
    assert "splitveil.training" not in text
    assert len(text.splitlines()) < 80
