"""What the correction does, measured before a step."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mars import MARS
from mars.optim.measures import correction_measures
from problems import LEAN


def two_gradients(seed: int = 0, **options):
    """Return an optimizer after one step, with the next gradients at hand."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((4, 3), (5, 2), (6,))
    params = [torch.nn.Parameter(torch.randn(s, generator=generator)) for s in shapes]
    optimizer = MARS(params, **options)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator)
    previous = [p.grad.clone() for p in params]
    optimizer.step()
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator)
    return optimizer, params, previous


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 99),
    gamma=st.floats(0, 0.2),
    beta1=st.sampled_from([0.0, 0.9, 0.95]),
    max_norm=st.floats(2, 20),  # about where the norms lie
)
def test_measures_are_those_of_the_corrected_gradient(seed, gamma, beta1, max_norm):
    options = {"gamma": gamma, "betas": (beta1, 0.99), "max_norm": max_norm}
    optimizer, params, previous = two_gradients(seed, **options)
    k = gamma * beta1 / (1 - beta1)
    g = [p.grad.double() for p in params[:2]]
    last = [each.double() for each in previous[:2]]
    c = [a + k * (a - b) for a, b in zip(g, last, strict=True)]
    flat, flat_last, flat_c = (torch.cat([t.flatten() for t in ts]) for ts in (g, last, c))
    found = correction_measures(optimizer)
    ratio = float((flat_c - flat).norm() / flat.norm())
    cosine = float(torch.cosine_similarity(flat, flat_last, dim=0))
    assert math.isclose(found["correction_ratio"], ratio, rel_tol=1e-4, abs_tol=1e-6)
    assert math.isclose(found["gradient_cosine"], cosine, rel_tol=1e-4, abs_tol=1e-6)
    assert found["clip_rate"] == sum(float(each.norm()) > max_norm for each in c) / 2


@pytest.mark.parametrize(("factor", "rate"), [(0.999, 0.5), (1.001, 0.0)])
def test_a_tensor_is_clipped_from_the_norm_of_its_corrected_gradient_on(factor, rate):
    optimizer, params, previous = two_gradients(gamma=0.1)
    params[1].grad = previous[1] * 1e-3  # far below any limit here
    optimizer.state[params[1]]["last_grad"].zero_()
    k = 0.1 * 0.95 / 0.05
    c = params[0].grad + k * (params[0].grad - previous[0])
    optimizer.param_groups[0]["max_norm"] = float(c.norm()) * factor
    assert correction_measures(optimizer)["clip_rate"] == rate


def test_the_clip_rate_counts_tensors():
    optimizer, params, _ = two_gradients(max_norm=1.0, gamma=0.0)
    params[0].grad = torch.full_like(params[0], 10.0)
    params[1].grad = torch.full_like(params[1], 0.01)
    assert correction_measures(optimizer)["clip_rate"] == 0.5


def test_equal_gradients_are_not_corrected():
    optimizer, params, previous = two_gradients()
    for p, g in zip(params, previous, strict=True):
        p.grad = g.clone()
    found = correction_measures(optimizer)
    assert found["correction_ratio"] < 1e-3
    assert math.isclose(found["gradient_cosine"], 1, rel_tol=1e-6)


def test_measuring_changes_nothing():
    measured, ours, _ = two_gradients()
    plain, theirs, _ = two_gradients()
    correction_measures(measured)
    measured.step()
    plain.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("options", [LEAN, {"clip": None}])
def test_there_is_no_clip_rate_without_a_clip(options):
    optimizer, _, _ = two_gradients(**options)
    found = correction_measures(optimizer)
    assert set(found) == (set() if "lean" in options else {"correction_ratio", "gradient_cosine"})


def test_there_is_nothing_to_measure_before_the_first_step():
    param = torch.nn.Parameter(torch.ones(2, 2))
    param.grad = torch.ones(2, 2)
    assert correction_measures(MARS([param])) == {}
