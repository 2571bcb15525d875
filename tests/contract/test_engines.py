"""Every engine does what the reference says, and what every other engine does."""

import os
import subprocess
import sys
import warnings

import pytest
import torch
from test_reference import OPTION_GRID, Twin, as_options
from torch import nn
from torch._inductor import config as inductor_config
from torch._inductor.exc import InductorError
from torch._subclasses.fake_tensor import FakeTensorMode

import problems
from golden.test_golden import ELEMENTWISE, ORTHOGONAL, flat, name, run, shaped
from mars import MARS
from mars.optim import routing
from mars.optim.engines import compiled
from mars.optim.engines import compiler as compiler_module
from mars.optim.engines.compiler import Compiler
from mars.optim.routing import Route, engine_of
from problems import LEAN, TYPES, assert_close, parameters, train, trained

SMALLEST, TYPICAL = routing.SMALLEST_COMPILED, compiler_module.TYPICAL
PLAIN = compiled.Variant(folded=False, stored=True, squares_gradient=False)
SHAPES = ((8, 9), (9, 8), (5, 3, 4), (37,), (3,))


# torch's own compiler uses what torch deprecates, and remarks on a mixture that is tested here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:bf16 and fp16 are mixed:UserWarning"),
]


@pytest.fixture(autouse=True)
def _kernels_for_small_tensors(monkeypatch):
    # The tests' tensors are small; leave only those to the eager engine that are tiny. What is
    # compiled for them must not stay on disk: see TYPICAL.
    monkeypatch.setattr(routing, "SMALLEST_COMPILED", 16)
    monkeypatch.setattr(compiler_module, "TYPICAL", 0)
    monkeypatch.setattr(inductor_config, "fx_graph_cache", False)
    yield
    assert not compiled._compiler.is_broken, "the eager engine stood in for the compiled one"


@pytest.mark.parametrize(
    "grid", [g for g in OPTION_GRID if g[-1]], ids=lambda grid: "-".join(map(str, grid))
)
def test_the_compiled_engine_equals_the_reference(grid):
    generator = torch.Generator().manual_seed(0)
    options = {"lr": 0.02, "weight_decay": 0.03, "lr_1d": 0.01, "gamma": 0.06, "fused": True}

    def random(shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    twin = Twin([[nn.Parameter(random(s)) for s in SHAPES]], [{**options, **as_options(*grid)}])
    for _ in range(4):
        twin.step([random(shape) for shape in SHAPES])
    twin.check()


@pytest.mark.parametrize(("case", "way"), ELEMENTWISE[::3], ids=name)
def test_the_compiled_engine_follows_the_authors(case, way):
    for ours, theirs in zip(run(case, way, fused=True), case["trajectory"], strict=True):
        assert (flat(ours) - flat(shaped(case, theirs))).abs().max() <= 1e-6


@pytest.mark.parametrize(("case", "way"), ORTHOGONAL[::3], ids=name)
def test_the_compiled_engine_follows_the_authors_matrices(case, way):
    theirs = flat(shaped(case, case["trajectory"][-1]))
    update = theirs - flat(shaped(case, case["x0"]))
    assert (flat(run(case, way, fused=True)[-1]) - theirs).norm() <= 2e-2 * update.norm()


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", [{}, {"last_grad_dtype": torch.bfloat16}, LEAN], ids=str)
def test_engines_agree_in_every_dtype(mars_type, dtype, form):
    options = {"mars_type": mars_type, "shapes": SHAPES, "dtype": dtype, "lr": 0.01, **form}
    fast, optimizer = trained(fused=True, **options)
    slow, _ = trained(**options)
    # One rounding of the parameter's dtype; Newton-Schulz amplifies that of its input.
    tolerance = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    assert_close([p.float() for p in fast], [p.float() for p in slow], tolerance)
    assert all(s["exp_avg"].dtype == torch.float32 for s in optimizer.state.values())


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("order", [(True, None), (None, True)], ids=["fused first", "eager first"])
def test_a_run_can_change_engines(mars_type, order):
    options = {"mars_type": mars_type, "weight_decay": 0.1}
    params, optimizer = trained(3, SHAPES, dtype=torch.float64, fused=order[0], **options)
    copies = [nn.Parameter(p.detach().clone()) for p in params]
    packed = optimizer.state_dict()
    packed["param_groups"][0]["fused"] = order[1]
    other = MARS(copies)
    other.load_state_dict(packed)
    large = {row.engine for row in other.describe() if row.tensor != "0.4"}
    assert large == {"compiled" if order[1] else "eager"}
    train(optimizer, params, 3, seed=8)
    train(other, copies, 3, seed=8)
    assert_close(params, copies, 1e-12)


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("form", [{}, LEAN], ids=["buffered", "lean"])
def test_the_compiled_engine_skips_on_the_device(mars_type, form):
    options = {"mars_type": mars_type, "nonfinite": "skip", "capturable": True, **form}
    params, optimizer = trained(2, SHAPES, fused=True, **options)
    tensors = params + [v for state in optimizer.state.values() for v in state.values()]
    before = [t.detach().clone() for t in tensors]
    for param in params:
        param.grad = torch.full_like(param, float("nan"))
    optimizer.step()
    problems.assert_equal([t.detach() for t in tensors], before)
    train(optimizer, params, 1, seed=4)
    clean, reference = trained(2, SHAPES, **options)
    train(reference, clean, 1, seed=4)
    assert_close(params, clean, 1e-6)


@pytest.mark.parametrize("mars_type", TYPES)
def test_a_thousand_steps_of_schedules_compile_once(mars_type):
    params = parameters((12, 9), (20, 7), (64,))
    optimizer = MARS(params, mars_type=mars_type, gamma=lambda t: 0.05 / t, fused=True, lr=0.01)
    train(optimizer, params, 2)
    before = compiled._compiler.compilations
    assert before > 0
    for step in range(998):
        group = optimizer.param_groups[0]
        group["lr"] = 0.01 * (1 - step / 1000)
        group["betas"] = (0.9 + 0.09 * step / 1000, 0.99)
        group["weight_decay"] = 0.1 * step / 1000
        if step == 500:
            late = parameters((31, 5), (50,), seed=3)
            optimizer.add_param_group({"params": late, "lr": 0.3, "max_norm": 2.0})
            params = params + late
        train(optimizer, params, 1, seed=step)
    assert compiled._compiler.compilations == before


def run_kernel(compiler, function, *arguments):
    return compiler.kernel(function, PLAIN, *arguments)(*arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("first", [SMALLEST, 3_000_001])
def test_one_compilation_serves_every_size_of_use(first, dtype, monkeypatch):
    monkeypatch.setattr(compiler_module, "TYPICAL", TYPICAL)
    compiler = Compiler()
    generator = torch.Generator().manual_seed(first)
    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    numbers = torch.rand(len(compiled.Numbers._fields), generator=generator).to(wide)
    tails = [SMALLEST + tail for tail in (0, 1, 3, 4, 5, 7, 8, 63, 64, 65, 67, 68, 69)]
    for size in (first, *tails, 1_000_003, TYPICAL):
        grad, last_grad = torch.randn(2, size, generator=generator).to(dtype)
        (scale,) = run_kernel(compiler, compiled._scale, grad, last_grad, numbers)
        (expected,) = compiled._scale(grad, last_grad, numbers, PLAIN)
        torch.testing.assert_close(scale, expected, rtol=1e-5, atol=0)

        ours = [torch.rand(size, generator=generator).to(wide) for _ in range(4)]
        theirs = [tensor.clone() for tensor in ours]
        last = [None, numbers, scale[None], None]
        run_kernel(compiler, compiled._step, ours[0], grad, *ours[1:], *last)
        compiled._step(theirs[0], grad, *theirs[1:], *last, PLAIN)
        assert_close(ours, theirs, 1e-5)
    assert compiler.compilations == 2


def test_a_kernel_is_compiled_again_where_its_assumptions_do_not_hold():
    compiler = Compiler()
    numbers = torch.rand(len(compiled.Numbers._fields))
    for size in (40, 50, 1024, 40, 2000):  # the first two have no whole row
        grad, last_grad = torch.randn(2, size)
        scale = run_kernel(compiler, compiled._scale, grad, last_grad, numbers)
        torch.testing.assert_close(scale, compiled._scale(grad, last_grad, numbers, PLAIN))
    assert compiler.compilations == 2


def test_a_kernel_is_compiled_again_for_another_number_of_threads(monkeypatch):
    monkeypatch.setattr(compiler_module, "TYPICAL", TYPICAL)
    compiler = Compiler()
    numbers = torch.rand(len(compiled.Numbers._fields))
    grad, last_grad = torch.randn(2, 2**17)
    threads = torch.get_num_threads()
    try:
        for number in (1, 3, 2, 3):
            # The code has a place for the sum of each thread it was compiled for, and no more.
            torch.set_num_threads(number)
            scale = run_kernel(compiler, compiled._scale, grad, last_grad, numbers)
            torch.testing.assert_close(scale, compiled._scale(grad, last_grad, numbers, PLAIN))
    finally:
        torch.set_num_threads(threads)
    assert compiler.compilations == 3


def test_a_step_of_the_compiled_engine_holds_about_one_largest_tensor():
    from test_eager import MEGABYTE, peak_extra_bytes

    for mars_type in TYPES:
        params = [nn.Parameter(torch.randn(64, 2**15)) for _ in range(10)]
        params.append(nn.Parameter(torch.randn(64, 2**17)))
        optimizer = MARS(params, mars_type=mars_type, fused=True)
        train(optimizer, params, 1)
        largest = max(p.nbytes for p in params)
        matrices = mars_type in ("mars-shampoo", "mars-m")
        limit = largest + 16 * MEGABYTE if matrices else MEGABYTE
        assert not compiled._compiler.is_broken
        assert peak_extra_bytes(optimizer) <= limit


PROGRAM = """
import sys, warnings, torch
sys.path.insert(0, {tests!r})
from problems import assert_equal, trained
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    fused, _ = trained(shapes=((256, 256), (64,)), fused=True)
plain, _ = trained(shapes=((256, 256), (64,)))
assert_equal(fused, plain)
ours = [str(w.message) for w in caught if "fused=True" in str(w.message)]
print(len(ours), ours[0])
"""


def test_without_a_compiler_the_eager_engine_takes_over_with_one_warning(tmp_path):
    tests = os.path.dirname(os.path.dirname(__file__))
    environment = {
        **os.environ,
        "CXX": "/nonexistent/c++",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(tests=tests)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 fused=True found no working compiler")


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("form", [{}, LEAN], ids=["buffered", "lean"])
@pytest.mark.parametrize(
    "failure", [InductorError(OSError("no space left"), None), RuntimeError()], ids=repr
)
def test_a_compiler_that_fails_at_any_kernel_leaves_the_step_whole(
    mars_type, form, failure, monkeypatch
):
    options = {"steps": 2, "shapes": SHAPES, "mars_type": mars_type, **form}
    expected, _ = trained(**options)
    compiles = compiler_module._Compiled.__init__
    names = {"_scale", "_step", "_momentum", "_move"}
    for broken in names:

        def fails(self, function, *rest, name=broken, **options):
            if function.__name__ == name:
                raise failure
            compiles(self, function, *rest, **options)

        with monkeypatch.context() as patch:
            patch.setattr(compiler_module._Compiled, "__init__", fails)
            patch.setattr(compiled, "_compiler", Compiler())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                actual, _ = trained(**options, fused=True)
        assert_close(actual, expected, 1e-5)


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("fused", [None, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("form", [{}, LEAN], ids=["buffered", "lean"])
def test_autograd_hears_that_a_parameter_has_changed(mars_type, fused, form):
    params, optimizer = trained(1, SHAPES, mars_type=mars_type, fused=fused, **form)
    before = [param._version for param in params]
    train(optimizer, params, 1)
    assert all(p._version > version for p, version in zip(params, before, strict=True))


@pytest.mark.parametrize("fused", [None, True], ids=["eager", "compiled"])
def test_a_gradient_whose_sign_is_yet_to_be_applied(fused):
    (ours,), (theirs,) = parameters((12, 9)), parameters((12, 9))
    optimizers = MARS([ours], fused=fused), MARS([theirs])
    for _ in range(2):
        gradient = torch.randn(12, 9)
        ours.grad, theirs.grad = torch._neg_view(gradient.clone()), -gradient
        for optimizer in optimizers:
            optimizer.step()
    assert_close([ours], [theirs], 1e-6)


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("fused", [None, True], ids=["eager", "compiled"])
def test_gradients_of_exact_mode_are_left_as_they_are(mars_type, fused):
    (param,) = parameters((12, 9))
    optimizer = MARS([param], mars_type=mars_type, is_approx=False, fused=fused)
    evaluated: list[torch.Tensor] = []
    finish = optimizer._exact.finish

    def recorded(*arguments):
        evaluated.extend((optimizer._exact._evaluated or {}).values())
        finish(*arguments)

    optimizer._exact.finish = recorded
    for _ in range(2):
        with optimizer.previous_point():
            param.grad = torch.full_like(param, 0.5)
        param.grad = torch.ones_like(param)
        optimizer.step()
    assert evaluated
    problems.assert_equal(evaluated, [torch.full_like(each, 0.5) for each in evaluated])


def test_tensors_too_small_for_a_kernel_are_described_as_eager(monkeypatch):
    monkeypatch.setattr(routing, "SMALLEST_COMPILED", 100)
    _, optimizer = trained(1, shapes=((9, 9), (10, 10), (200,)), fused=True)
    assert [row.engine for row in optimizer.describe()] == ["eager", "compiled", "compiled"]


def test_the_default_engine_needs_no_compiler():
    _, optimizer = trained(1)
    assert {row.engine for row in optimizer.describe()} == {"eager"}
    assert "eager" in str(optimizer.describe())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(1)


def test_a_kernel_has_no_derivative():
    with pytest.raises(ValueError, match="fused=True excludes differentiable=True"):
        MARS(parameters((3, 2)), fused=True, differentiable=True)


@pytest.mark.parametrize(
    ("device", "fused", "engine"),
    [
        ("cpu", None, "eager"),
        ("cpu", True, "compiled"),
        ("cuda", None, "eager"),
        ("cuda", True, "triton"),
        ("xpu", True, "compiled"),
    ],
)
def test_the_engine_is_chosen_by_device_and_request(device, fused, engine):
    with FakeTensorMode():  # of any device, also of one that is not here
        param = torch.empty(4, 4, device=device)
    group = {"fused": fused, "process_group": None}
    assert engine_of(param, group, Route("matrix", "adamw", reduced=True)) == engine
