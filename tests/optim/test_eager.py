"""The eager engine: chunks, memory, synchronisation."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from mars import MARS
from mars.optim.engines import eager
from problems import LEAN, TYPES, assert_close, assert_equal, train, trained

MEGABYTE = 2**20


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("clip", ["tensor", "global", None])
@pytest.mark.parametrize("elements", [1, 5, 16, 1000])
def test_the_size_of_chunks_does_not_matter(mars_type, clip, elements, monkeypatch):
    options = {"mars_type": mars_type, "clip": clip, "optimize_1d": True, "dtype": torch.float64}
    shapes = ((6, 4), (4, 6), (7,), (3, 2, 2, 2), (6, 4), ())
    expected, _ = trained(shapes=shapes, **options)
    monkeypatch.setitem(eager._CHUNK_ELEMENTS, "cpu", elements)
    monkeypatch.setattr(eager, "_MATRIX_CHUNK_ELEMENTS", elements)
    actual, _ = trained(shapes=shapes, **options)
    # Norms are summed, and matrices batched, in another order.
    assert_close(actual, expected, 1e-13)


@pytest.mark.parametrize("clip", ["tensor", "global", None])
@pytest.mark.parametrize("form", [{}, {"amsgrad": True}], ids=str)
def test_block_by_block_is_the_same_arithmetic(clip, form, monkeypatch):
    monkeypatch.setitem(eager._CHUNK_ELEMENTS, "cpu", 16)
    options = {"shapes": ((9, 7), (5, 4), (4, 3)), "clip": clip, "max_norm": 0.5, **form}
    blocks = []
    update = eager._update_blocks_
    with monkeypatch.context() as patch:
        patch.setattr(
            eager,
            "_update_blocks_",
            lambda own, *a, **k: (blocks.extend(own), update(own, *a, **k)),
        )
        by_blocks, _ = trained(**options)
    monkeypatch.setattr(eager, "_goes_by_blocks", lambda *_: False)
    together, _ = trained(**options)
    assert len(blocks) > 2
    if clip is None:
        assert_equal(by_blocks, together)
    else:
        # The sum of squares, and the division by what it comes to, round elsewhere.
        assert_close(by_blocks, together, 1e-6)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "channels_last", "strided"])
def test_large_tensors_of_any_layout_are_cut_without_copying(layout, monkeypatch):
    monkeypatch.setitem(eager._CHUNK_ELEMENTS, "cpu", 16)
    values = torch.randn(4, 3, 5, 2, dtype=torch.float64)
    param = {
        "contiguous": lambda: values.clone(),
        "transposed": lambda: values.transpose(0, 2).contiguous().transpose(0, 2),
        "channels_last": lambda: values.contiguous(memory_format=torch.channels_last),
        "strided": lambda: torch.stack([values, values], dim=-1)[..., 0],
    }[layout]()
    assert torch.equal(param, values)
    ours, plain = nn.Parameter(param), nn.Parameter(values.clone())
    optimizers = [MARS([p], lr=0.1) for p in (ours, plain)]
    for step in range(3):
        grad = torch.randn(values.shape, generator=torch.Generator().manual_seed(step)).double()
        for p, optimizer in zip((ours, plain), optimizers, strict=True):
            p.grad = torch.empty_like(p).copy_(grad)
            optimizer.step()
    assert_close([ours.detach()], [plain.detach()], 1e-13)
    assert ours.stride() == param.stride()


def peak_extra_bytes(optimizer: MARS, closure=None) -> int:
    """Return the most that one step holds at a time beyond what it started with."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        optimizer.step(closure)
    events = profiler.profiler.kineto_results.events()
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert peak > 0
    return peak


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "maximize", "global", "lean"])
def test_a_step_holds_about_one_largest_tensor(mars_type, kind):
    # Ten matrices of 8 MB and one of 32 MB: a copy of the model would be 112 MB.
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    params = [nn.Parameter(torch.randn(64, 2**15, dtype=dtype)) for _ in range(10)]
    params.append(nn.Parameter(torch.randn(64, 2**17, dtype=dtype)))
    options = {"maximize": {"maximize": True}, "global": {"clip": "global"}, "lean": LEAN}
    optimizer = MARS(params, mars_type=mars_type, **options.get(kind, {}))
    train(optimizer, params, 1)
    largest = max(4 * p.numel() for p in params)  # moments are float32
    if mars_type in ("mars-adamw", "mars-lion"):
        assert peak_extra_bytes(optimizer) <= 16 * MEGABYTE  # a few chunks of 2 MB
    else:
        assert peak_extra_bytes(optimizer) <= largest + 16 * MEGABYTE


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # of the compiler itself
@pytest.mark.parametrize("mars_type", ["mars-shampoo", "mars-m"])
@pytest.mark.parametrize("fused", [False, True])
def test_many_square_matrices_stay_within_the_allowance(mars_type, fused):
    # Newton-Schulz holds squares of the short side, here as large as the matrices themselves.
    params = [nn.Parameter(torch.randn(1000, 1000)) for _ in range(6)]
    optimizer = MARS(params, mars_type=mars_type, fused=fused or None)
    train(optimizer, params, 1)
    assert peak_extra_bytes(optimizer) <= 4e6 + 64 * MEGABYTE


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("form", [{}, {"clip": "global"}, LEAN], ids=["plain", "global", "lean"])
@pytest.mark.parametrize("nonfinite", ["propagate", "skip"])
def test_a_step_reads_nothing_back_from_the_device(mars_type, form, nonfinite):
    """Tensors on the meta device have no values, so any read by the host raises."""
    shapes = ((6, 4), (6, 4), (3, 2, 2), (5,))
    params = [nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes]
    options = {"mars_type": mars_type, "nonfinite": nonfinite, **form}
    optimizer = MARS(params, capturable=True, **options)
    for param in params:
        param.grad = torch.empty_like(param)
    optimizer.step()
    assert all(state["step"].device.type == "meta" for state in optimizer.state.values())


@pytest.mark.parametrize("mars_type", TYPES)
def test_without_capture_only_step_counts_on_the_host_are_read(mars_type):
    params = [nn.Parameter(torch.empty(shape, device="meta")) for shape in ((6, 4), (5,))]
    optimizer = MARS(params, mars_type=mars_type, gamma=lambda step: 0.1 / step)
    for param in params:
        param.grad = torch.empty_like(param)
    optimizer.step()
    assert all(state["step"].tolist() == 1 for state in optimizer.state.values())


def test_reads_of_the_host_do_not_grow_with_the_number_of_tensors():
    class CountReads(torch.utils._python_dispatch.TorchDispatchMode):
        reads = 0

        def __torch_dispatch__(self, func, _, args=(), kwargs=None):
            self.reads += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    def reads(count):
        params, optimizer = trained(1, shapes=((3, 2),) * count, nonfinite="skip")
        with CountReads() as counter:
            train(optimizer, params, 1)
        return counter.reads

    assert reads(20) == reads(2)


@pytest.mark.parametrize("order", [("cpu", "meta"), ("meta", "cpu")])
def test_a_group_may_span_devices(order):
    params = [nn.Parameter(torch.ones(3, 2, device=device)) for device in order]
    optimizer = MARS(params)
    for _ in range(3):
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
    on_host = params[order.index("cpu")]
    (alone,) = [nn.Parameter(torch.ones(3, 2))]
    lone = MARS([alone])
    for _ in range(3):
        alone.grad = torch.ones(3, 2)
        lone.step()
    assert torch.equal(on_host, alone)


def test_step_counts_follow_a_policy_assigned_later():
    param = nn.Parameter(torch.empty(3, 2, device="meta"))
    param.grad = torch.empty_like(param)
    optimizer = MARS([param])
    optimizer.step()
    optimizer.param_groups[0]["nonfinite"] = "skip"
    optimizer.step()  # a count left on the host would have to be read back
    assert optimizer.state[param]["step"].device.type == "meta"
