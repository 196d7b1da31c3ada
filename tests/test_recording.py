"""A recorded pass leaves torch's settings as they were, and a fit ends where it does without one, compiled or not."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._dynamo.exc import TorchDynamoException

from splitveil.fitting import COMPILED_FROM, Fitted, Plan, fit
from splitveil.randomness import stream
from splitveil.recording import can_compile, recorded


def is_warning() -> bool:
    return torch._C._warn_on_accumulate_grad_stream_mismatch()


def test_nothing_is_recorded_on_a_cpu():
    network = nn.Linear(2, 1)
    forward = network.forward
    with recorded(network, (torch.zeros(1, 2),), bfloat16=False):
        assert network.forward == forward
        assert is_warning()


@pytest.fixture(params=[True, False])
def before(request):
    """Whether torch warned before anything was recorded."""
    warn = torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch
    warn(request.param)
    yield request.param
    warn(True)


def test_a_warning_is_off_while_it_is_recorded_and_replayed_and_then_as_it_was(before, monkeypatch):
    while_recording = []
    monkeypatch.setattr(
        "splitveil.recording._record", lambda *arguments, **options: while_recording.append(is_warning())
    )
    with recorded(Elsewhere(), (torch.zeros(1),), bfloat16=False):
        assert while_recording == [False]
        assert not is_warning()
    assert is_warning() is before


@pytest.mark.parametrize("when", ["recording", "training"])
def test_it_is_as_it_was_after_a_failure_too(before, when, monkeypatch):
    def record(*arguments, **options):
        if when == "recording":
            raise MemoryError

    monkeypatch.setattr("splitveil.recording._record", record)
    with pytest.raises(MemoryError), recorded(Elsewhere(), (torch.zeros(1),), bfloat16=False):  # noqa: PT012
        assert when == "training"
        raise MemoryError
    assert is_warning() is before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_recorded_step_says_nothing_and_leaves_nothing_behind(recwarn):
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).cuda()
    x, forward = torch.randn(8, 3, device="cuda"), network.forward
    torch.set_warn_always(True)  # else torch says it once in a process, and maybe it has
    try:
        with recorded(network, (x,), bfloat16=False):
            for _ in range(3):
                network(x).square().mean().backward()
            assert network.forward != forward
        assert network.forward == forward
        network.zero_grad(set_to_none=True)
        network(x).square().mean().backward()
    finally:
        torch.set_warn_always(False)
    assert [str(each.message) for each in recwarn if "stream" in str(each.message)] == []


class Elsewhere(nn.Module):
    """Says that it is on a GPU."""

    def parameters(self, recurse: bool = True):
        yield type("Weight", (), {"device": torch.device("cuda")})()

    def forward(self, x):
        return x + 1


@pytest.fixture
def compiler(monkeypatch):
    """One that doubles what a network says, or fails; and a recorder that rehearses and goes on as it is."""
    calls = []

    def compiled(forward, **options):
        assert options == {"dynamic": False}

        def run(*inputs):
            calls.append(inputs)
            if compiled.fails:
                raise TorchDynamoException("no such kernel")
            return 2 * forward(*inputs)

        return run

    compiled.fails, compiled.calls = False, calls
    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", lambda network, sample, **options: network(*sample))
    monkeypatch.setattr("splitveil.recording.find_spec", lambda name: object())
    monkeypatch.setattr("splitveil.recording.shutil.which", lambda name: name)
    return compiled


def test_the_pass_in_training_is_compiled_and_no_other(compiler):
    network, x = Elsewhere(), torch.ones(1)
    with recorded(network, (x,), bfloat16=False, is_compiled=True):
        assert network(x) == 4
        assert network.eval()(x) == 2
        assert network.train()(x) == 4
    assert network(x) == 2


def test_what_cannot_be_compiled_is_recorded_as_it_is(compiler):
    compiler.fails = True
    network, x = Elsewhere(), torch.ones(1)
    with (
        pytest.warns(UserWarning, match="no such kernel"),
        recorded(network, (x,), bfloat16=False, is_compiled=True),
    ):
        assert network(x) == 2
    assert len(compiler.calls) == 1


@pytest.mark.parametrize("missing", ["find_spec", "shutil.which"])
def test_nothing_is_compiled_without_what_it_needs(compiler, missing, monkeypatch):
    monkeypatch.setattr(f"splitveil.recording.{missing}", lambda name: None)
    with recorded(Elsewhere(), (torch.ones(1),), bfloat16=False, is_compiled=True):
        assert compiler.calls == []


@pytest.mark.parametrize("steps", [COMPILED_FROM - 1, COMPILED_FROM])
def test_a_long_fit_is_compiled(steps, monkeypatch):
    asked = []
    monkeypatch.setattr("splitveil.fitting.recorded", lambda *inputs, **options: asked.append(options) or 1 / 0)
    network = nn.Linear(1, 1)
    with pytest.raises(ZeroDivisionError):
        fit(network, loss=lambda net, step: net.weight.sum(), score=lambda net: net.weight, plan=Plan(steps=steps))
    assert asked == [{"bfloat16": False, "is_compiled": steps >= COMPILED_FROM}]


@pytest.mark.gpu
@pytest.mark.skipif(not (torch.cuda.is_available() and can_compile()), reason="needs a CUDA device and a compiler")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("rung", ["residual", "unet"])
def test_a_compiled_step_is_the_step(rung, precision):
    """In a process of its own: types are not checked there, which the compiler could not look through."""
    subprocess.run([sys.executable, "-c", STEPS, rung, precision], check=True, timeout=300)


STEPS = """
import sys

import torch
from torch import nn

from splitveil.networks.decoders import Decoder
from splitveil.recording import recorded

rung, is_rounded = sys.argv[1], sys.argv[2] == "bfloat16"
torch.backends.cudnn.allow_tf32 = False  # of a float32 slope it leaves three digits, and other ones elsewhere
near, floor = (0.1, 1e-2) if is_rounded else (0.01, 1e-4)  # of a weight's own slope, and of the longest one
torch.manual_seed(0)
(sample, _), (z, x) = ([torch.rand(16, *shape).cuda() for shape in ((8, 8, 8), (3, 32, 32))] for _ in range(2))
found = []
for is_compiled in (False, True):
    torch.manual_seed(0)
    network = Decoder(rung, feature_shape=(8, 8, 8), image_shape=(3, 32, 32)).cuda()
    for parameter in network.parameters():  # some begin at zero, and hide what is before them
        nn.init.normal_(parameter, std=0.1)
    network.calibrate(x, z)
    network = network.to(memory_format=torch.channels_last) if is_rounded else network
    with recorded(network, (sample,), bfloat16=is_rounded, is_compiled=is_compiled):
        with torch.autocast("cuda", torch.bfloat16, enabled=is_rounded):
            loss = (network(z) - x).square().mean()
        loss.backward()
    found.append(([parameter.grad for parameter in network.parameters()], list(network.buffers())))
(slopes, kept), (compiled, kept_there) = found
longest = max(slope.norm() for slope in slopes)
for wanted, slope in zip(slopes, compiled):
    assert (slope - wanted).norm() <= near * wanted.norm() + floor * longest
for wanted, buffer in zip(kept, kept_there):
    torch.testing.assert_close(buffer, wanted, rtol=near, atol=near)
"""


def normalized_fit(device: str, *, is_recorded: bool = False, steps: int = 40, rehearsals: int = 0) -> Fitted:
    """Of a network with batch statistics; `rehearsals` are passes that leave their mark on them."""
    batches = torch.randn(5, 64, 3, 8, 8, generator=stream(0, "x")).to(device)
    x = batches[0]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 1)).to(device)
    for _ in range(rehearsals):
        net(2 * x)
    return fit(
        net,
        loss=lambda net, step: _far(net, batches[step % 5]),
        score=lambda net: _far(net, x),
        plan=Plan(steps=steps, lr=1e-3, check_every=10),
        sample=(x,) if is_recorded else None,
    )


def _far(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (net(x) - x.mean(1, keepdim=True).relu()).square().mean()


def assert_same(found: Fitted, wanted: Fitted) -> None:
    """What they compute, and what was read at each check. Weights may differ where nothing depends on them: a bias in
    front of a normalization has no slope but rounding, which Adam makes as long as any."""
    device = next(wanted.network.parameters()).device
    fresh = torch.randn(32, 3, 8, 8, generator=stream(1, "fresh")).to(device)
    with torch.no_grad():
        torch.testing.assert_close(found.network(fresh), wanted.network(fresh), atol=1e-3, rtol=0)
    read = [torch.tensor([(check.train_loss, check.score) for check in each.checks]) for each in (found, wanted)]
    torch.testing.assert_close(*read, atol=0, rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_recorded_fit_ends_where_the_same_fit_does():
    assert_same(normalized_fit("cuda", is_recorded=True), normalized_fit("cuda"))


@pytest.mark.parametrize("fault", [{"steps": 41}, {"steps": 39}, {"rehearsals": 1}, {"rehearsals": 3}], ids=str)
def test_a_step_more_or_statistics_of_a_rehearsal_are_not_the_same(fault):
    wanted = normalized_fit("cpu")
    assert_same(normalized_fit("cpu"), wanted)
    with pytest.raises(AssertionError, match=r"not close|shape"):
        assert_same(normalized_fit("cpu", **fault), wanted)


def test_a_bias_in_front_of_a_normalization_may_differ():
    moved, wanted = normalized_fit("cpu"), normalized_fit("cpu")
    conv, norm = moved.network[0], moved.network[1]
    with torch.no_grad():
        conv.bias += 0.01  # as Adam's steps along rounding errors do: the running mean goes with it
        norm.running_mean += 0.01
    assert_same(moved, wanted)
