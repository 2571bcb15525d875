"""Every rule and option against the slow float64 transcription of the paper."""

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mars import MARS
from mars.optim import reference
from mars.optim.engines import eager
from problems import LEAN, TYPES

TOLERANCE = 1e-12
SHAPES = [(), (0,), (1,), (7,), (0, 3), (1, 5), (5, 1), (3, 5), (5, 3), (4, 2, 3), (3, 2, 2, 2)]
FORMS = [
    *itertools.product(("tensor", "global", None), ("corrected", "gradient")),
    ("lean", "gradient"),
]
OPTION_GRID = [
    (mars_type, *form, *flags)
    for mars_type in TYPES
    for form in FORMS
    for flags in itertools.product((False, True), repeat=3)
]


def as_options(mars_type, clip, second_moment, amsgrad, maximize, optimize_1d) -> dict:
    form = LEAN if clip == "lean" else {"clip": clip, "second_moment": second_moment}
    return {
        "mars_type": mars_type,
        "amsgrad": amsgrad,
        "maximize": maximize,
        "optimize_1d": optimize_1d,
        **form,
    }


def layout(values: Tensor, kind: str) -> nn.Parameter:
    """Return a parameter with the given values and memory layout."""
    if kind == "transposed" and values.ndim >= 2:
        return nn.Parameter(values.mT.contiguous().mT)
    if kind == "channels_last" and values.ndim == 4:
        return nn.Parameter(values.contiguous(memory_format=torch.channels_last))
    if kind == "strided" and values.ndim >= 1:
        wide = values.new_zeros(*values.shape[:-1], 2 * values.shape[-1])
        wide[..., ::2] = values
        return nn.Parameter(wide[..., ::2])
    return nn.Parameter(values)


class Twin:
    """MARS and the reference side by side, on the same groups and gradients."""

    def __init__(self, groups: list[list[nn.Parameter]], options: list[dict]):
        self.params = [p for group in groups for p in group]
        self.groups = [{"params": group, **own} for group, own in zip(groups, options, strict=True)]
        self.optimizer = MARS(self.groups)
        self.tracks = [reference.Track(p.detach()) for p in self.params]

    def settings(self) -> list[reference.Settings]:
        """What the optimizer's groups say at this step, as the reference wants it."""
        fields = reference.Settings.__dataclass_fields__
        every = []
        for group in self.optimizer.param_groups:
            own = {name: group[name] for name in fields}
            own["lr_1d"] = group["lr"] * group["lr_1d"] / group["base_lr"]
            for param in group["params"]:
                count = 1 + int(self.optimizer.state.get(param, {}).get("step", 0))
                gamma = group["gamma"]
                own["gamma"] = gamma(count) if callable(gamma) else gamma
                every.append(reference.Settings(**own))
        return every

    def step(self, grads: list[Tensor | None]) -> None:
        for param, grad in zip(self.params, grads, strict=True):
            param.grad = None if grad is None else grad.clone()
        settings = self.settings()
        self.optimizer.step()
        reference.step(self.tracks, grads, settings)

    def check(self) -> None:
        for param, track in zip(self.params, self.tracks, strict=True):
            torch.testing.assert_close(param.detach(), track.x, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("grid", OPTION_GRID, ids=lambda grid: "-".join(map(str, grid)))
def test_equals_the_reference_for_every_combination_of_options(grid):
    generator = torch.Generator().manual_seed(0)

    def random(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    options = {"lr": 0.02, "weight_decay": 0.03, "lr_1d": 0.01, "gamma": 0.06, **as_options(*grid)}
    twin = Twin([[nn.Parameter(random(shape)) for shape in SHAPES]], [options])
    for _ in range(4):
        twin.step([random(shape) for shape in SHAPES])
    twin.check()


@st.composite
def problems(draw) -> tuple[Twin, list[list[Tensor | None]], int]:
    sizes = st.lists(st.integers(0, 6), min_size=0, max_size=4).map(tuple)
    kinds = st.sampled_from(["plain", "transposed", "channels_last", "strided"])
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    groups, options = [], []
    for _ in range(draw(st.integers(1, 3))):
        shapes = draw(st.lists(sizes, min_size=1, max_size=4))
        groups.append(
            [
                layout(torch.randn(s, generator=generator, dtype=torch.float64), draw(kinds))
                for s in shapes
            ]
        )
        low, high = draw(st.tuples(st.floats(0, 0.2), st.floats(0, 0.2)))
        gamma = draw(st.sampled_from([low, lambda t, a=low, b=high: a if t % 2 else b]))
        options.append(
            {
                "lr": draw(st.floats(1e-4, 0.1)),
                "betas": draw(st.tuples(st.floats(0, 0.98), st.floats(0, 0.999))),
                "betas_1d": draw(st.tuples(st.floats(0, 0.98), st.floats(0, 0.999))),
                "weight_decay": draw(st.floats(0, 0.5)),
                "weight_decay_1d": draw(st.floats(0, 0.5)),
                "lr_1d": draw(st.floats(0, 0.1)),
                "max_norm": draw(st.floats(0.1, 10)),
                "gamma": gamma,
                "foreach": draw(st.sampled_from([None, True, False])),
                **as_options(*draw(st.sampled_from(OPTION_GRID))),
            }
        )
    twin = Twin(groups, options)
    steps = []
    for _ in range(draw(st.integers(1, 5))):
        missing = draw(
            st.lists(st.booleans(), min_size=len(twin.params), max_size=len(twin.params))
        )
        steps.append(
            [
                None if gone else torch.randn(p.shape, generator=generator, dtype=torch.float64)
                for p, gone in zip(twin.params, missing, strict=True)
            ]
        )
    return twin, steps, draw(st.sampled_from([3, 8, 2**19]))


@given(problems())
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_equals_the_reference_on_any_problem(problem):
    twin, steps, chunk_elements = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(eager._CHUNK_ELEMENTS, "cpu", chunk_elements)
        for grads in steps:
            twin.step(grads)
    twin.check()


def test_a_learning_rate_schedule_moves_vectors_and_matrices_alike():
    params = [nn.Parameter(torch.ones(3, 2).double()), nn.Parameter(torch.ones(3).double())]
    twin = Twin([params], [{"lr": 0.1, "lr_1d": 0.02}])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(twin.optimizer, gamma=0.7)
    generator = torch.Generator().manual_seed(3)
    for _ in range(5):
        twin.step([torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in params])
        scheduler.step()
    twin.check()
    assert twin.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.7**5)
