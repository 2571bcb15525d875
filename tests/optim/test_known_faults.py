"""One test for each fault known of another MARS implementation.

Each fails on an implementation with that fault; the docstrings say which one has it.
"""

import pytest
import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

import problems
from mars import MARS
from problems import TYPES, assert_close, assert_equal, parameters, train, trained


def gradient_styles():
    """Ways in which a training loop may treat ``p.grad`` between two steps."""

    def fresh(param, grad):
        param.grad = grad

    def zeroed_in_place(param, grad):
        if param.grad is None:
            param.grad = torch.zeros_like(param)
        param.grad.zero_()
        param.grad.add_(grad)

    def accumulated_in_place(param, grad):
        zeroed_in_place(param, grad * 0.25)
        param.grad.add_(grad, alpha=0.75)

    def reused_buffer(param, grad):
        param.grad = None
        param.bucket = getattr(param, "bucket", torch.zeros(param.numel() + 3))
        param.bucket[3:].copy_(grad.flatten())
        param.grad = param.bucket[3:].view_as(param)

    return [fresh, zeroed_in_place, accumulated_in_place, reused_buffer]


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("style", gradient_styles()[1:], ids=lambda style: style.__name__)
def test_the_previous_gradient_is_not_an_alias_of_the_gradient(style, mars_type):
    """Authors' code, timm before 1.0.30, pytorch_optimizer before 3.11: an alias of ``p.grad``."""

    def run(treat):
        params = parameters((4, 3), (3,))
        optimizer = MARS(params, mars_type=mars_type, optimize_1d=True)
        for grads in problems.gradients(params, 5):
            for param, grad in zip(params, grads, strict=True):
                # A quarter and three quarters add up exactly only on a coarse grid.
                treat(param, (grad * 64).round() / 64)
            optimizer.step()
            for param in params:
                if param.grad is not None and treat.__name__ != "fresh":
                    param.grad.fill_(7.0)  # whoever owns the buffer may write to it
        return params

    assert_equal(run(style), run(gradient_styles()[0]))


@pytest.mark.parametrize("mode", ["set_to_none", "in_place", "model", "never_read_again"])
def test_zeroing_gradients_in_any_way_gives_one_trajectory(mode):
    """Authors' code: ``zero_grad(set_to_none=False)`` cancels the correction."""

    def run(zero):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = MARS(model.parameters())
        for step in range(5):
            zero(model, optimizer)
            model(torch.full((3, 5), step + 1.0)).square().mean().backward()
            optimizer.step()
        return list(model.parameters())

    ways = {
        "set_to_none": lambda model, optimizer: optimizer.zero_grad(set_to_none=True),
        "in_place": lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
        "model": lambda model, optimizer: model.zero_grad(),
        "never_read_again": lambda model, optimizer: [
            setattr(p, "grad", None) for p in model.parameters()
        ],
    }
    assert_equal(run(ways[mode]), run(ways["set_to_none"]))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("gamma", 0.2),
        ("eps", 0.5),
        ("mars_type", "mars-lion"),
        ("betas", (0.5, 0.6)),
        ("betas_1d", (0.5, 0.6)),
        ("lr_1d", 0.5),
        ("lr", 0.5),
        ("weight_decay", 0.5),
        ("weight_decay_1d", 0.7),
        ("amsgrad", True),
        ("optimize_1d", True),
        ("clip", None),
        ("max_norm", 5.0),
        ("second_moment", "gradient"),
        ("maximize", True),
        ("last_grad_dtype", torch.bfloat16),
    ],
)
def test_every_option_is_read_from_its_group(option, value):
    """Authors' code reads gamma, eps, mars_type, betas_1d and lr_1d from the object."""
    shapes = ((4, 3), (3,))
    plain, _ = trained(shapes=shapes)
    whole, _ = trained(shapes=shapes, **{option: value})
    first, second = parameters(*shapes), parameters(*shapes)
    optimizer = MARS([{"params": first, option: value}, {"params": second}])
    generator = [g + g for g in problems.gradients(first, 6)]
    for grads in generator:
        for param, grad in zip(first + second, grads, strict=True):
            param.grad = grad
        optimizer.step()
    assert_equal(first, whole)
    assert_equal(second, plain)
    assert any(not torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("mars_type", TYPES)
def test_options_changed_in_the_group_take_effect_and_survive_a_reload(mars_type):
    """Authors' code: neither an assignment nor ``load_state_dict`` reaches the arithmetic."""
    params, optimizer = trained(3, mars_type=mars_type)
    optimizer.param_groups[0].update(gamma=0.2, lr_1d=0.5, weight_decay_1d=0.3)
    copies = [nn.Parameter(p.detach().clone()) for p in params]
    fresh = MARS(copies)
    fresh.load_state_dict(optimizer.state_dict())
    train(optimizer, params, 3, seed=2)
    train(fresh, copies, 3, seed=2)
    assert_equal(params, copies)
    unchanged, reference = trained(3, mars_type=mars_type)
    train(reference, unchanged, 3, seed=2)
    assert all(not torch.equal(a, b) for a, b in zip(params, unchanged, strict=True))


@pytest.mark.parametrize("mars_type", TYPES)
def test_a_zero_learning_rate_changes_nothing_and_is_finite(mars_type):
    """Authors' code divides lr_1d by lr."""
    params, optimizer = trained(2, mars_type=mars_type, lr=0.0)
    assert_equal(params, parameters((6, 4), (4,)))
    optimizer.param_groups[0]["lr"] = 1e-2
    train(optimizer, params, 1)
    assert all(p.isfinite().all() for p in params)


@pytest.mark.parametrize("mars_type", TYPES)
def test_a_step_with_zero_gradients_and_zero_learning_rate_creates_the_whole_state(mars_type):
    """Sharded checkpointing takes such a step to learn which state there is."""
    params = parameters((6, 4), (4,))
    optimizer = MARS(params, mars_type=mars_type, lr=0.0)
    for param in params:
        param.grad = torch.zeros_like(param)
    optimizer.step()
    _, grown = trained(3, mars_type=mars_type)
    for ours, other in zip(optimizer.state.values(), grown.state.values(), strict=True):
        assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in other.items()}
        assert all(v.isfinite().all() for v in ours.values())
    assert all(p.isfinite().all() for p in params)


def test_a_step_without_any_gradient_does_nothing():
    """Authors' code raises UnboundLocalError."""
    params = parameters((3, 2), (2,))
    optimizer = MARS(params)
    assert optimizer.step() is None
    assert_equal(params, parameters((3, 2), (2,)))
    assert not optimizer.state


@pytest.mark.parametrize("mars_type", TYPES)
def test_a_parameter_without_a_gradient_is_left_alone(mars_type):
    params, optimizer = trained(3, shapes=((6, 4), (6, 4), (4,)), mars_type=mars_type)
    before = params[1].detach().clone()
    state = {k: v.clone() for k, v in optimizer.state[params[1]].items()}
    params[1].grad = None
    optimizer.step()
    assert torch.equal(params[1], before)
    assert all(torch.equal(v, state[k]) for k, v in optimizer.state[params[1]].items())
    assert optimizer.state[params[0]]["step"] == 4


@pytest.mark.parametrize("mars_type", TYPES)
def test_one_nan_gradient_does_not_poison_the_next_step_when_skipped(mars_type):
    """Authors' code keeps the NaN gradient and subtracts it from the next one."""
    params, optimizer = trained(3, mars_type=mars_type, nonfinite="skip")
    params[0].grad = torch.full_like(params[0], float("nan"))
    optimizer.step()
    train(optimizer, params, 2, seed=5)
    clean, reference = trained(3, mars_type=mars_type)
    train(reference, clean, 2, seed=5)
    assert_equal(params, clean)
    assert optimizer.skipped_steps == 1


def test_the_authors_published_loop_runs_unmodified():
    """Authors' loop calls ``step(bs=...)``, which their own step rejects."""
    params, _ = trained(4)
    others = parameters((6, 4), (4,))
    optimizer = MARS(others)
    for grads in problems.gradients(others, 4):
        for param, grad in zip(others, grads, strict=True):
            param.grad = grad
        optimizer.update_previous_grad()
        optimizer.step(bs=480 * 1024)
        optimizer.zero_grad(set_to_none=True)
        optimizer.update_last_grad()
    assert_equal(params, others)


def test_bias_correction_uses_each_parameters_own_step_count():
    """Authors' fused kernel: wrong bias correction."""
    late, early = parameters((3, 2), (3, 2))
    optimizer = MARS([late, early], lr=0.1, clip=None)
    early.grad = torch.ones(3, 2)
    optimizer.step()
    late.grad = torch.ones(3, 2)
    before = late.detach().clone()
    optimizer.step()
    # At a parameter's own first step m^ / sqrt(v^) is the sign of the gradient.
    assert_close([before - late.detach()], [torch.full((3, 2), 0.1)], 1e-5)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1023, 1025, 5 * 2**17 - 1, 5 * 2**17 + 1])
def test_every_element_is_updated_whatever_the_size(size):
    """Authors' fused kernel: tail elements are never updated."""
    (param,) = parameters((1, size))
    before = param.detach().clone()
    param.grad = torch.ones_like(param)
    MARS([param], lr=0.1).step()
    assert ((before - param.detach()) > 0.05).all()


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_parameters_move(mars_type, dtype):
    """Authors' fused kernel: bf16 parameters never move."""
    wide, _ = trained(3, mars_type=mars_type, lr=0.05)
    narrow = [nn.Parameter(p.detach().to(dtype)) for p in parameters((6, 4), (4,))]
    optimizer = MARS(narrow, mars_type=mars_type, lr=0.05)
    for grads in problems.gradients(parameters((6, 4), (4,)), 3):
        for param, grad in zip(narrow, grads, strict=True):
            param.grad = grad.to(dtype)
        optimizer.step()
    # Rounding to 8 (bf16) or 11 (fp16) bits at each of three steps; Newton-Schulz amplifies the
    # rounding of its input.
    assert_close([p.detach().float() for p in narrow], [p.detach() for p in wide], 6e-2)


def test_mars_m_clips_and_gamma_matters():
    """Authors' MARS-M: ``clip_c`` is ignored, changing gamma has no effect."""
    runs = [
        trained(mars_type="mars-m", **options)[0][0]
        for options in ({}, {"clip": None}, {"gamma": 0.1})
    ]
    for i, left in enumerate(runs):
        for right in runs[i + 1 :]:
            assert (left - right).abs().max() > 1e-4


@pytest.mark.parametrize("mars_type", TYPES)
def test_a_generator_of_parameters_is_accepted(mars_type):
    """Authors' MARS-M crashes on one."""
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    for params in (model.parameters(), [{"params": model.parameters()}], model.named_parameters()):
        optimizer = MARS(params, mars_type=mars_type)
        optimizer.step()
        assert len(optimizer.state) == 2


def test_gamma_and_beta1_are_not_swapped():
    """HeavyBall passes them in each other's place, which weakens the correction 10 to 20 times."""
    param = nn.Parameter(torch.zeros(1, 1, dtype=torch.float64))
    optimizer = MARS([param], gamma=0.025, betas=(0.95, 0.99), clip=None, mars_type="mars-lion")
    for value in (1.0, 3.0):
        param.grad = torch.full_like(param, value)
        optimizer.step()
    k = 0.025 * 0.95 / 0.05
    first = 0.05 * (1 + k) * 1.0
    expected = 0.95 * first + 0.05 * (3.0 + k * (3.0 - 1.0))
    assert optimizer.state[param]["exp_avg"].item() == pytest.approx(expected, rel=1e-12)


def test_weight_decay_1d_decays_vectors():
    """pytorch_optimizer before 3.11 validates weight_decay_1d and never uses it."""
    (vector,) = parameters((5,))
    before = vector.detach().clone()
    vector.grad = torch.zeros(5)
    MARS([vector], lr=0.1, lr_1d=0.1, weight_decay_1d=0.5).step()
    assert_close([vector.detach()], [before * (1 - 0.1 * 0.5)], 1e-6)


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("form", [{}, problems.LEAN], ids=["buffered", "lean"])
def test_a_step_leaves_gradients_untouched(mars_type, maximize, form):
    """pytorch_optimizer's maximize negates the user's gradient in place."""
    params = parameters((6, 4), (4,), (2, 3, 2, 2))
    optimizer = MARS(params, mars_type=mars_type, maximize=maximize, optimize_1d=True, **form)
    for grads in problems.gradients(params, 3):
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.clone()
        optimizer.step()
        assert_equal([p.grad for p in params], grads)


def test_the_correction_does_not_cancel_into_plain_adamw():
    """optax#1689: its recursion reduces to c_t = g_t, plain AdamW for every gamma."""
    plain, _ = trained(gamma=0.0, clip=None)
    reduced, _ = trained(gamma=0.025, clip=None)
    assert (plain[0] - reduced[0]).abs().max() > 1e-4


def test_convolutions_take_the_matrix_rule():
    """Authors' code: ndim == 2 only, so a convolution silently falls back to AdamW."""
    conv, flat = parameters((4, 2, 3, 3), (4, 18))
    with torch.no_grad():
        flat.copy_(conv.flatten(1))
    optimizer = MARS([conv, flat], mars_type="mars-m")
    conv.grad = torch.randn(4, 2, 3, 3)
    flat.grad = conv.grad.flatten(1).clone()
    optimizer.step()
    # Batched and single products may round differently.
    assert_close([conv.detach().flatten(1)], [flat.detach()], 1e-6)
    assert set(optimizer.state[conv]) == {"step", "exp_avg", "last_grad"}


def test_ddp_with_gradients_as_views_of_its_buckets_changes_nothing(tmp_path):
    """Authors' code: ``DDP(gradient_as_bucket_view=True)`` silently cancels the correction."""

    def run(wrap):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
        wrapped = wrap(model)
        optimizer = MARS(wrapped.parameters())
        for step in range(5):
            optimizer.zero_grad()
            wrapped(torch.full((3, 5), step + 1.0)).square().mean().backward()
            optimizer.step()
        return list(model.parameters())

    plain = run(lambda model: model)
    init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        ddp = run(lambda m: DistributedDataParallel(m, gradient_as_bucket_view=True))
    finally:
        destroy_process_group()
    assert_equal(ddp, plain)


@pytest.mark.filterwarnings("ignore")  # of a world of one rank, and of FSDP1 itself
def test_parameters_flattened_by_fsdp1_are_refused(tmp_path):
    """FSDP1 flattens parameters to 1-D, so that every tensor silently becomes AdamW."""
    init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for use_orig_params in (False, True):
            model = nn.Linear(4, 4)
            wrapped = FullyShardedDataParallel(
                model, device_id=torch.device("cpu"), use_orig_params=use_orig_params
            )
            with pytest.raises(ValueError, match=r"FSDP1.*fully_shard"):
                MARS(wrapped.parameters())
    finally:
        destroy_process_group()


def test_parameters_flattened_behind_the_optimizer_are_refused():
    """DeepSpeed ZeRO exchanges a group's parameters for one flat tensor after construction."""
    params, optimizer = trained(1)
    flat = nn.Parameter(torch.cat([p.detach().flatten() for p in params]))
    flat.grad = torch.ones_like(flat)
    optimizer.param_groups[0]["params"] = [flat]
    with pytest.raises(RuntimeError, match=r"group 0.*flat.*fully_shard"):
        optimizer.step()
    assert flat not in optimizer.state


def test_float32_state_of_bfloat16_parameters_survives_a_reload():
    """pytorch#43706: Optimizer.load_state_dict casts state to the parameter's dtype."""
    params = [nn.Parameter(p.detach().bfloat16()) for p in parameters((6, 4), (4,))]
    optimizer = MARS(params)
    train(optimizer, params, 3)
    copies = [nn.Parameter(p.detach().clone()) for p in params]
    fresh = MARS(copies)
    fresh.load_state_dict(optimizer.state_dict())
    for ours, theirs in zip(fresh.state.values(), optimizer.state.values(), strict=True):
        for key, value in ours.items():
            assert value.dtype == torch.float32
            assert torch.equal(value, theirs[key])
    train(optimizer, params, 3, seed=2)
    train(fresh, copies, 3, seed=2)
    assert_equal(params, copies)
