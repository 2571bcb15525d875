"""What the Triton engine computes, by Triton's interpreter.

The interpreter must be chosen before the kernels are imported, so `test_triton` runs this file in
processes of its own. The oracles are the eager engine and the float64 reference.
"""

import itertools
import os
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from golden.test_golden import CASES, flat, run, shaped
from mars import MARS
from mars.optim import engines, reference
from mars.optim.buckets import Bucket
from mars.optim.engines import eager, triton_engine, triton_kernels
from problems import LEAN, TYPES

assert os.environ["TRITON_INTERPRET"] == "1"
# The interpreter computes with numpy, which warns of the infinities that some tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

by_eager = engines.run_


def by_triton(buckets: list[Bucket], norms: list[Tensor | None]) -> None:
    """Take a step on every bucket by the Triton engine, as `engines.run_` does on a GPU."""
    triton_engine.run_(buckets, eager.clip_scales_from(norms, buckets))


Engine = Callable[[list[Bucket], list[Tensor | None]], None]

# In units of the last place; the interpreter truncates to bfloat16 where devices round.
ULP = {torch.bfloat16: 2**-7, torch.float16: 2**-10}


def odd_view(values: Tensor) -> Tensor:
    """Return the values as a view that starts one element into its storage."""
    return torch.cat([values.new_zeros(1), values.flatten()])[1:].view(values.shape)


def channels_last(values: Tensor) -> Tensor:
    return values.contiguous(memory_format=torch.channels_last)


def transposed(values: Tensor) -> Tensor:
    return values.mT.contiguous().mT


def strided(values: Tensor) -> Tensor:
    return torch.stack([values, values], dim=-1)[..., 0]


def lazily_negated(values: Tensor) -> Tensor:
    """Return the values as a view of their negatives."""
    view = torch.complex(torch.zeros_like(values), -values).conj().imag
    assert view.is_neg()
    return view


def plain(values: Tensor) -> Tensor:
    return values.clone()


# A full block and a tail; unaligned; another dense layout; a vector; nothing.
MODEL = [
    ((2, 600), plain),
    ((7, 9), odd_view),
    ((4, 3, 3, 3), channels_last),
    ((5,), odd_view),
    ((0, 3), plain),
]
# Wide and tall, of both orders in memory, and two of one shape.
MATRICES = [
    ((2, 600), plain),
    ((9, 7), odd_view),
    ((9, 7), plain),
    ((4, 3, 3, 3), channels_last),
    ((6, 5), transposed),
]


class Twins:
    """One problem twice, stepped by the Triton engine and by the eager engine."""

    def __init__(self, model=MODEL, *, dtype=torch.float32, engine=by_triton, **options):
        self.generator = torch.Generator().manual_seed(0)
        values = [self.random(shape, dtype) for shape, _ in model]
        self.layouts = [layout for _, layout in model]
        self.exact = not options.get("is_approx", True)
        self.sides: list[tuple[MARS, Engine]] = []
        for run_ in (engine, by_eager):
            pairs = zip(values, self.layouts, strict=True)
            params = [nn.Parameter(layout(v)) for v, layout in pairs]
            self.sides.append((MARS(params, **{"lr": 0.1, "weight_decay": 0.1, **options}), run_))

    def random(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(dtype)

    def grads(self) -> list[Tensor]:
        return [self.random(p.shape, p.dtype) for p in self.params(0)]

    def params(self, side: int) -> list[nn.Parameter]:
        return self.sides[side][0].param_groups[0]["params"]

    def give(self, side: int, grads: list[Tensor]) -> None:
        for param, grad, layout in zip(self.params(side), grads, self.layouts, strict=True):
            param.grad = layout(grad)

    def step(self, grads: list[Tensor] | None = None, *, warm_up: bool = False) -> None:
        """Take one step on both sides; a warm-up is by the eager engine on both."""
        previous, grads = self.grads(), self.grads() if grads is None else grads
        for side, (optimizer, run_) in enumerate(self.sides):
            if self.exact:
                self.give(side, previous)
                optimizer.update_previous_grad()
                optimizer.update_last_grad()
            self.give(side, grads)
            engines.run_ = by_eager if warm_up else run_
            try:
                optimizer.step()
            finally:
                engines.run_ = by_eager
            for param, grad in zip(self.params(side), grads, strict=True):
                assert torch.equal(param.grad, grad) or grad.isnan().any()

    def everything(self, side: int) -> list[Tensor]:
        """Return the parameters and all of their state."""
        states = [self.sides[side][0].state[param] for param in self.params(side)]
        return [
            *(param.detach() for param in self.params(side)),
            *(value for state in states for value in state.values()),
        ]

    def check(self, *, scale: float = 1.0) -> None:
        """Assert that both sides are equal to rounding."""
        for ours, theirs in zip(self.everything(0), self.everything(1), strict=True):
            assert ours.dtype == theirs.dtype
            assert ours.stride() == theirs.stride()
            ulp = ULP.get(ours.dtype, 0.0)
            size = float(theirs.abs().nan_to_num(0, 0, 0).max()) if theirs.numel() else 0.0
            torch.testing.assert_close(
                ours,
                theirs,
                rtol=scale * 1e-5 + ulp,
                # Sums cancel: what is left has the rounding of its terms.
                atol=scale * 4e-7 * size,
                equal_nan=True,
            )


FORMS = [
    *itertools.product((True, False), ("tensor", "global", None), ("corrected", "gradient")),
    "lean",
]


def form_options(form) -> dict:
    if form == "lean":
        return LEAN
    return dict(zip(("is_approx", "clip", "second_moment"), form, strict=True))


ELEMENTWISE = [
    *itertools.product(("mars-adamw",), FORMS, (False, True), (False, True)),
    *itertools.product(("mars-lion",), FORMS[::2], (False,), (False, True)),
]
MATRIX = [*itertools.product(("mars-shampoo", "mars-m"), FORMS[::2], (False,), (False, True))]


@pytest.mark.parametrize("guarded", [False, True], ids=["unguarded", "guarded"])
@pytest.mark.parametrize("grid", ELEMENTWISE + MATRIX, ids=lambda g: "-".join(map(str, g)))
def test_every_combination_equals_the_eager_engine(grid, guarded):
    mars_type, form, amsgrad, maximize = grid
    options = {"amsgrad": amsgrad, "maximize": maximize, "optimize_1d": True, **form_options(form)}
    if guarded:
        options |= {"capturable": True, "nonfinite": "skip"}
    matrix = mars_type in ("mars-shampoo", "mars-m")
    model = MATRICES if matrix else MODEL
    twins = Twins(model, mars_type=mars_type, **options)
    twins.step(warm_up=True)
    before = [value.clone() for value in twins.everything(0)]
    if guarded:
        grads = twins.grads()
        grads[1][3, 3] = torch.nan
        twins.step(grads)
        assert all(torch.equal(a, b) for a, b in zip(before, twins.everything(0), strict=True))
    twins.step()
    # Newton-Schulz enlarges the rounding of small singular values.
    twins.check(scale=30 if matrix else 1)
    params = zip(before, twins.params(0), strict=False)
    assert all((old != new).all() for old, new in params)  # of the empty one too


@pytest.mark.parametrize(
    "case", [c for c in CASES if c["mode"] == "approx"], ids=lambda c: c["name"]
)
def test_follows_the_authors_trajectories(case, monkeypatch):
    monkeypatch.setattr(engines, "run_", by_triton)
    theirs = flat(shaped(case, case["trajectory"][-1]))
    ours = flat(run(case, "approx")[-1])
    if case["algorithm"] in ("mars-adamw", "mars-lion"):
        assert (ours - theirs).abs().max() <= 1e-6  # float32 over eight steps
    else:
        update = theirs - flat(shaped(case, case["x0"]))
        assert (ours - theirs).norm() <= 2e-2 * update.norm()  # theirs is in bfloat16


@st.composite
def problems(draw) -> tuple[dict, list[tuple[tuple[int, ...], Callable]], int]:
    clip, second_moment = draw(
        st.sampled_from([*itertools.product(("tensor", "global", None), ("corrected", "gradient"))])
    )
    lean = clip is None and second_moment == "gradient" and draw(st.booleans())
    low, high = draw(st.tuples(st.floats(0, 0.1), st.floats(0, 0.1)))
    options = {
        "mars_type": draw(st.sampled_from(["mars-adamw", "mars-lion"])),
        "lr": draw(st.floats(1e-4, 0.1)),
        "betas": draw(st.tuples(st.floats(0, 0.95), st.floats(0.5, 0.999))),
        "weight_decay": draw(st.floats(0, 0.5)),
        "gamma": draw(st.sampled_from([low, lambda t: low if t % 2 else high])),
        "max_norm": draw(st.floats(0.1, 10)),
        "optimize_1d": draw(st.booleans()),
        "amsgrad": draw(st.booleans()),
        "maximize": draw(st.booleans()),
        "eps": 1e-4,  # in float32, a smaller one lets rounding decide where v is nearly 0
        **{"clip": clip, "second_moment": second_moment, "lean": lean},
    }
    shapes = st.lists(st.integers(0, 6), min_size=0, max_size=3).map(tuple)
    layouts = st.sampled_from([plain, odd_view, strided])
    model = draw(st.lists(st.tuples(shapes, layouts), min_size=1, max_size=4))
    return options, model, draw(st.sampled_from([32, 1024]))


@given(problems())
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_equals_the_reference_on_any_problem(problem):
    options, model, block = problem
    fields = set(reference.Settings.__dataclass_fields__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_engine, "_BLOCK", block)
        twins = Twins(model, **options)
        tracks = [reference.Track(p.detach()) for p in twins.params(0)]
        for count in range(1, 4):
            grads = twins.grads()
            twins.step(grads)
            gamma = options["gamma"]
            own = {key: value for key, value in options.items() if key in fields}
            own["gamma"] = gamma(count) if callable(gamma) else gamma
            reference.step(tracks, list(grads), [reference.Settings(**own)] * len(model))
    for param, track in zip(twins.params(0), tracks, strict=True):
        # Three steps of float32, corrections up to three times the gradient.
        torch.testing.assert_close(param.detach().double(), track.x, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("mars_type", TYPES)
def test_tails_of_any_length_are_updated(mars_type, monkeypatch):
    """The authors' fused kernel leaves the elements after the last full block as they are."""
    monkeypatch.setattr(triton_engine, "_BLOCK", 16)
    model = [((1, n), layout) for n in (1, 2, 15, 16, 17, 33, 48) for layout in (plain, odd_view)]
    twins = Twins(model, mars_type=mars_type)
    before = [p.detach().clone() for p in twins.params(0)]
    twins.step()
    twins.check()
    for old, new in zip(before, twins.params(0), strict=True):
        assert (old != new).all()


FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize(
    ("mars_type", "dtype", "grad_dtype", "last_grad_dtype"),
    [
        *itertools.product(("mars-adamw",), FLOATS, FLOATS, FLOATS[:2]),
        *(("mars-m", dtype, dtype, torch.float32) for dtype in FLOATS[1:]),
    ],
)
def test_dtypes_may_differ(mars_type, dtype, grad_dtype, last_grad_dtype):
    def with_grads_cast(engine: Engine) -> Engine:
        def run_(buckets: list[Bucket], norms: list[Tensor | None]) -> None:
            cast = [[g.to(grad_dtype) for g in bucket.tensors.grads] for bucket in buckets]
            engine(
                [
                    replace(bucket, tensors=replace(bucket.tensors, grads=grads))
                    for bucket, grads in zip(buckets, cast, strict=True)
                ],
                norms,
            )

        return run_

    model = [((3, 500), plain), ((7, 9), odd_view)]
    options = {"mars_type": mars_type, "last_grad_dtype": last_grad_dtype, "dtype": dtype}
    twins = Twins(model, engine=with_grads_cast(by_triton), **options)
    twins.sides[1] = (twins.sides[1][0], with_grads_cast(by_eager))
    twins.step(warm_up=True)
    before = [p.detach().clone() for p in twins.params(0)]
    twins.step()
    twins.check(scale=30 if mars_type == "mars-m" else 1)
    for old, new in zip(before, twins.params(0), strict=True):
        # The authors' fused kernel never moves bfloat16 parameters.
        assert (old != new).float().mean() > 0.9


@pytest.mark.parametrize("form", [{}, {"clip": "global"}, LEAN], ids=["tensor", "global", "lean"])
def test_what_has_no_kernel_takes_the_same_step(form):
    generator = torch.Generator().manual_seed(3)

    def parameters() -> list[nn.Parameter]:
        generator.manual_seed(3)
        values = [torch.randn(6, 4, generator=generator) for _ in range(5)]
        others = (values[2].double(), torch.complex(values[3], values[4]), strided(values[1]))
        return [nn.Parameter(v) for v in (values[0], *others, values[1].clone())]

    def trained(engine: Engine) -> list[nn.Parameter]:
        params = parameters()
        optimizer = MARS(params, lr=0.1, **form)
        for _ in range(3):
            for p in params:
                p.grad = torch.randn(6, 4, generator=generator).to(p.dtype)
            engines.run_ = engine
            try:
                optimizer.step()
            finally:
                engines.run_ = by_eager
        return params

    for ours, theirs in zip(trained(by_triton), trained(by_eager), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_gradients_of_another_layout_take_the_same_step():
    twins = Twins([((4, 3, 3, 3), channels_last), ((6, 5), plain), ((7,), plain)], clip="global")
    twins.layouts = [plain, transposed, lazily_negated]
    for _ in range(2):
        twins.step()
        twins.check()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("form", [*itertools.product((True,), ("tensor", "global", None)), "lean"])
@pytest.mark.parametrize("mars_type", ["mars-adamw", "mars-lion"])
def test_a_non_finite_gradient_spreads_as_in_the_eager_engine(mars_type, form, value):
    options = LEAN if form == "lean" else {"clip": form[1], "amsgrad": True}
    twins = Twins([((3, 40), plain), ((4, 4), plain)], mars_type=mars_type, **options)
    twins.step(warm_up=True)
    for _ in range(2):
        grads = twins.grads()
        grads[0][1, 7] = value
        twins.step(grads)
        twins.check()


def test_a_largest_second_moment_that_is_not_a_number_stays():
    twins = Twins([((3, 40), plain)], amsgrad=True)
    twins.step(warm_up=True)
    for optimizer, _ in twins.sides:
        (state,) = optimizer.state.values()
        state["max_exp_avg_sq"][1, 7] = torch.nan
    twins.step()
    twins.check()
    assert twins.params(0)[0].isnan().sum() == 1


@pytest.mark.parametrize("betas", [(0.95, 0.99), (0.9, 0.9999), (0.0, 0.5)])
@pytest.mark.parametrize("count", [1, 2, 10, 1000, 10**6])
def test_the_bias_correction_of_a_step_on_the_device_is_that_of_the_host(betas, count):
    """The authors' fused kernel corrects the bias wrongly."""
    moves = []
    for capturable in (False, True):
        twins = Twins([((2, 3), plain)], betas=betas, capturable=capturable, weight_decay=0.0)
        twins.step(warm_up=True)
        (param,), (optimizer, _) = twins.params(0), twins.sides[0]
        optimizer.state[param]["step"].fill_(count - 1)
        before = param.detach().clone()
        twins.step()
        moves.append(param.detach() - before)
    # The parameter's rounding is 1e-7, its move about 0.1.
    torch.testing.assert_close(moves[1], moves[0], rtol=1e-5, atol=2e-7)


@pytest.mark.parametrize("lr_dtype", [torch.float32, torch.float64])
def test_a_learning_rate_on_the_device_is_read_there(lr_dtype):
    twins = Twins(lr=torch.tensor(0.05, dtype=lr_dtype), capturable=True, mars_type="mars-m")
    launches = started_by(twins)
    assert all(launch.kind.form.lr_on_device for _, launch in launches)
    twins.check(scale=30)


def started_by(twins: Twins) -> list[tuple[object, triton_engine.Launch]]:
    """Return the kernels that one step launches."""
    launches = []

    def start(kernel, launch, *arguments, **options):
        launches.append((kernel, launch))
        original(kernel, launch, *arguments, **options)

    original = triton_engine._start
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_engine, "_start", start)
        twins.step()
    return launches


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize(
    ("options", "kernels"),
    [
        ({}, ["norm", "reduce", "update", "update"]),
        # A norm that engines share is taken before any of them runs.
        ({"clip": "global", "optimize_1d": True}, ["update"]),
        (LEAN, ["update"]),  # plain AdamW is the lean form at gamma = 0
    ],
    ids=["tensor", "global", "lean"],
)
def test_launches_do_not_grow_with_the_number_of_tensors(options, kernels, capturable):
    model = [((4, 5), plain), ((7,), plain)]
    for copies in (1, 5):
        twins = Twins(model * copies, capturable=capturable, **options)
        names = sorted(kernel.__name__ for kernel, _ in started_by(twins))
        assert names == sorted(f"{name}_kernel" for name in kernels)


def test_only_aligned_tensors_are_promised_to_be_aligned():
    twins = Twins([((4, 5), plain), ((4, 5), odd_view)])
    (optimizer, _) = twins.sides[0]
    for _, launch in started_by(twins):
        for row in launch.rows:
            streams = [t for tensors in row.tensors.lists() for t in tensors]
            aligned = all(t.data_ptr() % 16 == 0 for t in streams)
            assert launch.kind.form.aligned == aligned == (row.index == 0)
    # State may be unaligned too, for example after a checkpoint was mapped into memory.
    state = optimizer.state[twins.params(0)[0]]
    state["exp_avg_sq"] = odd_view(state["exp_avg_sq"])
    assert not any(launch.kind.form.aligned for _, launch in started_by(twins))
    twins.check()


def test_a_table_is_sent_again_only_when_an_address_changes(monkeypatch):
    sent = []

    def on_device(host: Tensor, _: torch.device) -> Tensor:
        sent.append(host.shape[1])
        return host

    monkeypatch.setattr(triton_engine, "_on_device", on_device)
    monkeypatch.setattr(triton_engine, "_kept", {})
    twins = Twins([((4, 5), plain), ((4, 6), plain)])
    columns, numbers = len(triton_kernels.Columns._fields), len(triton_kernels.Numbers._fields) // 2
    twins.step()
    assert sorted(sent) == sorted([columns, numbers])
    optimizer, _ = twins.sides[0]
    for fresh in (False, True):
        sent.clear()
        monkeypatch.setattr(engines, "run_", by_triton)
        kept = [param.grad for param in twins.params(0)]
        for param in twins.params(0):
            param.grad = torch.randn_like(param) if fresh else param.grad
        optimizer.step()
        assert sorted(sent) == (sorted([columns, numbers]) if fresh else [numbers])
        del kept
    monkeypatch.setattr(triton_engine, "_KEPT_BYTES", 1)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(4, 5)
    optimizer.step()
    assert len(triton_engine._kept) == 1


def test_tables_reach_a_device_through_arguments():
    host = torch.tensor([[2**62 + 1, -5, 0], [1, 2**47 - 16, 3]])
    assert torch.equal(triton_engine._through_arguments(host, torch.device("cpu")), host)


@pytest.mark.parametrize("mars_type", TYPES)
def test_a_step_reads_nothing_back(mars_type):
    class CountReads(torch.utils._python_dispatch.TorchDispatchMode):
        reads = 0

        def __torch_dispatch__(self, func, _, args=(), kwargs=None):
            self.reads += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    counter = CountReads()

    def engine(buckets: list[Bucket], norms: list[Tensor | None]) -> None:
        with counter:
            by_triton(buckets, norms)

    options = {"lr": torch.tensor(0.1), "capturable": True, "nonfinite": "skip", "clip": "global"}
    twins = Twins(engine=engine, mars_type=mars_type, **options)
    twins.step()
    twins.check(scale=30)
    assert counter.reads == 0


def test_a_global_clip_may_be_shared_with_other_engines():
    scales = torch.tensor([0.25, 0.5, 0.75])

    def expected(buckets: list[Bucket], _: list[Tensor | None]) -> None:
        (bucket,) = buckets
        eager.run_(bucket, scales)

    model = [((4, 5), plain), ((3, 2), strided), ((7, 3), plain)]
    twins = Twins(
        model, engine=lambda buckets, _: triton_engine.run_(buckets, [scales]), clip="global"
    )
    twins.sides[1] = (twins.sides[1][0], expected)
    twins.step()
    twins.check()


@pytest.mark.parametrize("options", [{"foreach": False}, {}], ids=["single", "batched"])
@pytest.mark.parametrize("form", [{}, LEAN], ids=["stored", "lean"])
def test_matrices_are_orthogonalised_in_bounded_batches(options, form, monkeypatch):
    batches = []
    rule = triton_engine.RULES["muon"]

    def counted(tensors, gradients, recipe):
        batches.append(len(tensors.params))
        return rule(tensors, gradients, recipe)

    monkeypatch.setattr(eager, "_MATRIX_CHUNK_ELEMENTS", 60)
    monkeypatch.setitem(triton_engine.RULES, "muon", counted)
    twins = Twins([((4, 5), plain)] * 7, mars_type="mars-m", **options, **form)
    twins.step()
    assert batches[: len(batches) // 2] == ([1] * 7 if options else [3, 3, 1])
    twins.check(scale=30)


def test_the_reduction_adds_any_number_of_blocks():
    counts = [1, 4095, 4096, 4097, 10000]
    partials = torch.rand(sum(counts), generator=torch.Generator().manual_seed(0))
    firsts = [sum(counts[:i]) for i in range(len(counts))]
    empty = triton_kernels.Columns(*[0] * len(triton_kernels.Columns._fields))
    rows = [
        empty._replace(first_block=first, blocks=count)
        for first, count in zip(firsts, counts, strict=True)
    ]
    numbers = triton_kernels.Numbers(*[0.0] * len(triton_kernels.Numbers._fields))
    table, scales = torch.tensor(rows), torch.empty(len(counts))
    every = [part.double().sum().sqrt() for part in partials.split(counts)]
    for max_norm in (1e-3, 30.0, 1e3):
        triton_kernels.reduce_kernel[(len(counts),)](
            table,
            torch.tensor([numbers._replace(max_norm=max_norm)]),
            partials,
            scales,
            form=triton_kernels.Form(1024, True, *[triton_kernels.tl.float32] * 3, clips=True),
        )
        expected = torch.stack([max_norm / norm.clamp(min=max_norm) for norm in every])
        torch.testing.assert_close(scales.double(), expected, rtol=1e-6, atol=0)
        assert all((scales == 1) == (expected == 1))


def test_autograd_notices_the_step(monkeypatch):
    monkeypatch.setattr(engines, "run_", by_triton)
    param = nn.Parameter(torch.ones(3, 2))
    loss = (param**2).sum()
    param.grad = torch.ones(3, 2)
    MARS([param]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_interpreter_makes_the_engine_available():
    assert triton_engine.is_available()
