"""Laws of the algorithm: what it reduces to, and what must not change its result."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import problems
from mars import MARS
from mars.optim.orthogonalize import orthogonalize
from problems import LEAN, TYPES, assert_close, assert_equal, parameters, train, trained

SHAPES = ((6, 4), (4, 6), (3, 2, 2, 2), (5,), ())


def pair(other_class, other_options, **options):
    """Train MARS and another optimizer on the same float64 problem; return both results."""
    ours, _ = trained(12, dtype=torch.float64, **options)
    theirs = parameters((6, 4), (4,), dtype=torch.float64)
    train(other_class(theirs, **other_options), theirs, 12)
    return [p.detach() for p in ours], [p.detach() for p in theirs]


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("form", [{"clip": None}, LEAN], ids=["buffered", "lean"])
def test_gamma_zero_without_clip_is_adamw(form, amsgrad):
    shared = {"lr": 0.02, "betas": (0.9, 0.97), "weight_decay": 0.1, "amsgrad": amsgrad}
    ours, theirs = pair(torch.optim.AdamW, shared, gamma=0.0, optimize_1d=True, **shared, **form)
    assert_close(ours, theirs, 1e-13)


def test_vectors_take_plain_adamw_steps_by_default():
    options = {"lr": 0.02, "betas": (0.8, 0.9), "weight_decay": 0.2}
    ours, theirs = pair(
        torch.optim.AdamW, options, lr=0.7, lr_1d=0.02, betas_1d=(0.8, 0.9), weight_decay_1d=0.2
    )
    assert_close(ours[1:], theirs[1:], 1e-13)


@pytest.mark.parametrize("form", [{"clip": None}, LEAN], ids=["buffered", "lean"])
def test_mars_m_at_gamma_one_minus_beta1_is_nesterov_muon(form, monkeypatch):
    # torch's Muon rounds to bfloat16 inside; ours stands in for its Newton-Schulz so that the
    # momentum and the scale are compared exactly.
    import torch.optim._muon as torch_muon

    monkeypatch.setattr(
        torch_muon,
        "_zeropower_via_newtonschulz",
        lambda update, coefficients, steps, eps: orthogonalize([update])[0],
    )
    ours = parameters((6, 4), (4, 6), dtype=torch.float64)
    theirs = parameters((6, 4), (4, 6), dtype=torch.float64)
    mars = MARS(
        ours, lr=0.02, betas=(0.9, 0.9), gamma=0.1, weight_decay=0.1, mars_type="mars-m", **form
    )
    muon = torch.optim.Muon(
        theirs, lr=0.02, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    train(mars, ours, 10)
    train(muon, theirs, 10)
    assert_close(ours, theirs, 1e-12)


def test_mars_m_is_torch_muon_up_to_bfloat16():
    ours, theirs = parameters((16, 8), (8, 16)), parameters((16, 8), (8, 16))
    options = {"lr": 0.02, "weight_decay": 0.1}
    mars = MARS(ours, betas=(0.9, 0.9), gamma=0.1, clip=None, mars_type="mars-m", **options)
    train(mars, ours, 10)
    muon = torch.optim.Muon(theirs, momentum=0.9, adjust_lr_fn="match_rms_adamw", **options)
    train(muon, theirs, 10)
    for a, b, x0 in zip(ours, theirs, parameters((16, 8), (8, 16)), strict=True):
        # 3e-2 of the way: Newton-Schulz amplifies bfloat16 rounding.
        assert (a - b).norm() <= 3e-2 * (b - x0).norm()


def test_mars_lion_at_gamma_zero_is_signed_momentum():
    params, _ = trained(
        8,
        dtype=torch.float64,
        mars_type="mars-lion",
        gamma=0.0,
        clip=None,
        weight_decay=0.1,
        lr=0.1,
    )
    (x,) = parameters((6, 4), dtype=torch.float64)
    x = x.detach()
    m = torch.zeros_like(x)
    for grad, _ in problems.gradients(parameters((6, 4), (4,), dtype=torch.float64), 8):
        m = 0.95 * m + 0.05 * grad
        x = x - 0.1 * (m.sign() + 0.1 * x)
    assert_close([params[0].detach()], [x], 1e-13)


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("gamma", [0.0, 0.025, lambda step: 0.1 / step], ids=["0", ".025", "1/t"])
def test_lean_equals_the_buffered_form(mars_type, gamma):
    options = {"mars_type": mars_type, "gamma": gamma, "optimize_1d": True, "dtype": torch.float64}
    lean, _ = trained(10, SHAPES, **options, **LEAN)
    buffered, _ = trained(10, SHAPES, **options, **{**LEAN, "lean": False})
    assert_close(lean, buffered, 1e-12)


def test_lean_follows_a_momentum_schedule():
    def run(**form):
        params = parameters((6, 4), dtype=torch.float64)
        optimizer = MARS(params, **form)
        for step, grads in enumerate(problems.gradients(params, 8)):
            optimizer.param_groups[0]["betas"] = (0.8 + 0.02 * step, 0.99)
            params[0].grad = grads[0]
            optimizer.step()
        return params

    assert_close(run(**LEAN), run(**{**LEAN, "lean": False}), 1e-12)


@pytest.mark.parametrize("mars_type", ["mars-shampoo", "mars-m"])
def test_matrix_rules_do_not_depend_on_the_gradients_scale_without_a_clip(mars_type):
    def run(scale):
        params = parameters((6, 4), dtype=torch.float64)
        optimizer = MARS(params, mars_type=mars_type, clip=None)
        for grads in problems.gradients(params, 5):
            params[0].grad = grads[0] * scale
            optimizer.step()
        return params

    assert_close(run(1.0), run(1e-9), 1e-12)


@pytest.mark.parametrize("mars_type", TYPES)
def test_maximize_ascends_along_the_negated_gradient(mars_type):
    up, _ = trained(mars_type=mars_type, maximize=True)
    params = parameters((6, 4), (4,))
    down = MARS(params, mars_type=mars_type)
    for grads in problems.gradients(params, 6):
        for param, grad in zip(params, grads, strict=True):
            param.grad = -grad
        down.step()
    assert_equal(up, params)


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("clip", ["tensor", "global", None])
def test_foreach_false_gives_the_same_trajectory(mars_type, clip):
    shapes = ((6, 4), (6, 4), (4, 6), (3, 2, 2, 2), (5,), ())
    options = {"mars_type": mars_type, "clip": clip, "optimize_1d": True, "dtype": torch.float64}
    one_by_one, _ = trained(shapes=shapes, foreach=False, **options)
    together, _ = trained(shapes=shapes, **options)
    # Batched and single matrix products round differently; the rest is the same arithmetic.
    assert_close(one_by_one, together, 1e-13)


@pytest.mark.parametrize("mars_type", ["mars-adamw", "mars-lion"])
def test_complex_parameters_are_pairs_of_reals(mars_type):
    (real,) = parameters((6, 4, 2), dtype=torch.float64)
    pairs = nn.Parameter(torch.view_as_complex(real.detach().clone()))
    ours = MARS([pairs], mars_type=mars_type)
    reals = MARS([real], mars_type=mars_type)
    for (grad,) in problems.gradients([real], 5):
        real.grad, pairs.grad = grad, torch.view_as_complex(grad.clone())
        ours.step()
        reals.step()
    assert_close([torch.view_as_real(pairs.detach())], [real.detach()], 1e-14)
    assert ours.state[pairs]["exp_avg"].dtype == torch.complex128


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (6, 2, 2)])
@pytest.mark.parametrize("mars_type", ["mars-shampoo", "mars-m"])
def test_complex_matrices_are_orthogonalised_as_complex_matrices(mars_type, shape):
    generator = torch.Generator().manual_seed(0)
    grad = torch.randn(shape, generator=generator, dtype=torch.complex128)
    param = nn.Parameter(torch.zeros(shape, dtype=torch.complex128))
    param.grad = grad
    MARS([param], lr=1.0, mars_type=mars_type).step()
    rows, cols = grad.flatten(1).shape
    scale = {"mars-shampoo": max(1, rows / cols) ** 0.5, "mars-m": 0.2 * 6**0.5}[mars_type]
    left, _, right = torch.linalg.svd(grad.flatten(1), full_matrices=False)
    inside = left.mH @ (-param.detach().flatten(1) / scale) @ right.mH
    # The update shares the gradient's singular vectors, with singular values of about one.
    assert (inside - torch.diag(inside.diagonal())).abs().max() < 1e-10
    assert ((inside.diagonal().real > 0.6) & (inside.diagonal().real < 1.3)).all()


def test_bf16_last_grad_stays_close_to_the_full_buffer():
    exact, _ = trained(10)
    rounded, optimizer = trained(10, last_grad_dtype=torch.bfloat16)
    matrix = optimizer.param_groups[0]["params"][0]
    assert optimizer.state[matrix]["last_grad"].dtype == torch.bfloat16
    moved = (exact[0] - parameters((6, 4))[0]).norm()
    # k = 0.475 times a rounding of 2^-9, seen through a momentum of twenty steps.
    assert 0 < (exact[0] - rounded[0]).norm() < 1e-2 * moved


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_tensor_learning_rate_equals_the_number(shape, capturable):
    number, _ = trained(lr=0.01, lr_1d=0.004, capturable=capturable)
    lr = torch.full(shape, 0.01, dtype=torch.float64)
    tensor, optimizer = trained(lr=lr, lr_1d=0.004, capturable=capturable)
    assert_close(number, tensor, 1e-7)  # one float32 rounding apart
    lr.fill_(0.0)  # the caller's tensor is read at every step
    before = [p.detach().clone() for p in tensor]
    train(optimizer, tensor, 1)
    assert_equal(tensor, before)


def test_a_numpy_learning_rate_is_a_number():
    assert_equal(trained(lr=np.float32(0.25))[0], trained(lr=0.25)[0])


def test_the_derivative_by_the_learning_rate_reaches_plain_vectors():
    lr = torch.tensor(0.1, requires_grad=True)
    (start,) = parameters((3,))
    param = start * 1.0
    optimizer = MARS([param], lr=lr, lr_1d=0.1, weight_decay_1d=0.0, differentiable=True)
    param.grad = torch.ones(3)
    optimizer.step()
    # At the first step AdamW moves by lr times the sign of the gradient.
    (slope,) = torch.autograd.grad(param.sum(), lr)
    assert slope.item() == pytest.approx(-3.0, rel=1e-5)
    copy.deepcopy(optimizer.param_groups[0]["base_lr"])


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("form", [{}, LEAN], ids=["buffered", "lean"])
def test_capturable_gives_the_same_trajectory(mars_type, form):
    options = {"mars_type": mars_type, "optimize_1d": True, "shapes": SHAPES, **form}
    captured, _ = trained(capturable=True, **options)
    plain, _ = trained(**options)
    # Bias corrections are float32 numbers on the device.
    assert_close(captured, plain, 1e-6)


@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("form", [{}, {"amsgrad": True}, LEAN], ids=["plain", "amsgrad", "lean"])
def test_differentiable_steps_have_the_right_derivative(mars_type, form):
    shapes = ((2, 3), (3,))
    starts = [p.detach() for p in parameters(*shapes, dtype=torch.float64)]

    def end(lr, *scales):
        # Three steps, so that derivatives flow through every state tensor.
        params = [start.clone().requires_grad_() * 1.0 for start in starts]
        optimizer = MARS(
            params, lr=lr, mars_type=mars_type, optimize_1d=True, differentiable=True, **form
        )
        for grads in problems.gradients(parameters(*shapes, dtype=torch.float64), 3):
            for param, grad, scale in zip(params, grads, scales, strict=True):
                param.grad = grad * scale + param.clone() * scale**2
            optimizer.step()
        return tuple(params)

    lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    scales = [torch.ones(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    assert torch.autograd.gradcheck(end, (lr, *scales), atol=1e-4, rtol=1e-3)
