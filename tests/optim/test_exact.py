"""Exact mode: two gradients on one sample, and nothing else changed."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_eager import peak_extra_bytes
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

import variance
from mars import MARS
from mars.optim import reference
from problems import TYPES, assert_close, assert_equal, parameters

WAYS = ("closure", "previous_point")


class Quadratic:
    """f_t(x) = 1/2 sum h_t (x - target_t)^2 with random h_t, one sample a step."""

    def __init__(self, params, seed: int = 3):
        self.params = params
        self.seed = seed

    def __call__(self, step: int, missing: tuple[int, ...] = ()) -> float:
        generator = torch.Generator().manual_seed(1000 * self.seed + step)
        loss = 0.0
        for i, p in enumerate(self.params):
            h, target = (torch.rand(2, *p.shape, generator=generator, dtype=p.dtype) + 0.5).unbind()
            if i not in missing:
                p.grad = h * (p.detach() - target)
                loss += float((h * (p.detach() - target) ** 2).sum() / 2)
        return loss


def advance(optimizer, problem, steps, way="closure"):
    """Take the numbered steps in the given way and return the losses."""
    losses = []
    for step in steps:

        def closure(step=step):
            optimizer.zero_grad()
            return problem(step)

        if way == "closure":
            losses.append(optimizer.step(closure))
        else:
            with optimizer.previous_point():
                closure()
            losses.append(closure())
            optimizer.step()
    return losses


def model_with_everything() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
    )


def random_states():
    return torch.get_rng_state(), random.getstate()


def snapshot(optimizer, *modules):
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    tensors += [buffer for module in modules for buffer in module.buffers()]
    return [tensor.detach().clone() for tensor in tensors]


@given(
    mars_type=st.sampled_from(TYPES),
    clip=st.sampled_from(["tensor", "global", None]),
    second_moment=st.sampled_from(["corrected", "gradient"]),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    gamma=st.sampled_from([0.0, 0.1, lambda step: 0.5 / step]),
    missing=st.lists(st.sets(st.integers(0, 3)), min_size=5, max_size=5),
    way=st.sampled_from(WAYS),
)
@settings(max_examples=100)
def test_equals_the_reference(mars_type, clip, second_moment, flags, gamma, missing, way):
    options = {
        "mars_type": mars_type,
        "clip": clip,
        "second_moment": second_moment,
        "weight_decay": 0.1,
        **dict(zip(("amsgrad", "maximize", "optimize_1d"), flags, strict=True)),
    }
    params = parameters((4, 3), (3, 4), (2, 2, 2), (5,), dtype=torch.float64)
    optimizer = MARS(params, lr=0.05, lr_1d=0.05, gamma=gamma, is_approx=False, **options)
    tracks = [reference.Track(p.detach()) for p in params]
    before = [track.x.clone() for track in tracks]
    slow = [nn.Parameter(track.x.clone()) for track in tracks]
    started = False
    for step, gone in enumerate(missing):
        gone = tuple(gone)

        def closure(step=step, gone=gone):
            optimizer.zero_grad()
            return Quadratic(params)(step, gone)

        if way == "closure":
            optimizer.step(closure)
        else:
            with optimizer.previous_point():
                closure()
            closure()
            optimizer.step()

        def gradients(points, step=step, gone=gone):
            for p, x in zip(slow, points, strict=True):
                p.data, p.grad = x.clone(), None
            Quadratic(slow)(step, gone)
            return [p.grad for p in slow]

        now = [track.x.clone() for track in tracks]
        g = gradients(now)
        g_prev = gradients(before) if started else [torch.zeros_like(x) for x in now]
        every = [
            reference.Settings(
                lr=0.05,
                lr_1d=0.05,
                gamma=gamma(track.t + 1) if callable(gamma) else gamma,
                **options,
            )
            for track in tracks
        ]
        reference.step(tracks, g, every, previous_gradients=g_prev)
        started = started or any(grad is not None for grad in g)
        before = now
    assert_close([p.detach() for p in params], [track.x for track in tracks], 1e-12)


@pytest.mark.parametrize("mars_type", TYPES)
def test_all_ways_give_the_same_trajectory_and_loss(mars_type):
    results = []
    for way in WAYS:
        params = parameters((6, 4), (4,))
        optimizer = MARS(params, is_approx=False, mars_type=mars_type)
        losses = advance(optimizer, Quadratic(params), range(5), way)
        results.append((params, losses))
    assert_equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_the_returned_loss_is_that_of_the_present_point():
    params = parameters((6, 4), (4,))
    optimizer = MARS(params, is_approx=False, lr=0.1)
    problem = Quadratic(params)
    for step in range(4):
        expected = problem(step)
        optimizer.zero_grad()
        assert advance(optimizer, problem, [step]) == [expected]


@pytest.mark.parametrize("way", WAYS)
def test_both_evaluations_see_the_same_masks_and_statistics_advance_once(way):
    model, single = model_with_everything(), model_with_everything()
    optimizer = MARS(model.parameters(), is_approx=False, lr=0.01)
    optimizer.track_buffers(model)
    masks, draws = [], []
    model[3].register_forward_hook(lambda _, i, o: masks.append((o != 0) | (i[0] == 0)))
    batches = torch.randn(4, 16, 6, generator=torch.Generator().manual_seed(1))
    for batch in batches:
        # One forward pass a step, at the same points and with the same random numbers.
        single.load_state_dict({**single.state_dict(), **dict(model.named_parameters())})
        state = torch.get_rng_state()
        single(batch)
        torch.set_rng_state(state)
        seen = len(masks)

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            draws.append(random.random())
            return loss.item()

        if way == "closure":
            optimizer.step(closure)
        else:
            with optimizer.previous_point():
                closure()
            closure()
            optimizer.step()
        if len(masks) - seen == 2:
            # Where both activations are positive, the masks can be compared.
            assert draws[-1] == draws[-2]
    assert_equal(list(model.buffers()), list(single.buffers()))
    assert len(masks) == (7 if way == "closure" else 8)  # the first step needs one evaluation


def test_dropout_masks_are_identical():
    dropout = nn.Dropout(0.5)
    (param,) = parameters((8, 8))
    optimizer = MARS([param], is_approx=False)
    masks = []

    def closure():
        optimizer.zero_grad()
        masks.append(dropout(torch.ones(8, 8)))
        (param * masks[-1]).sum().backward()

    for _ in range(3):
        optimizer.step(closure)
    first, *pairs = masks
    assert torch.equal(pairs[0], pairs[1])
    assert torch.equal(pairs[2], pairs[3])
    assert not torch.equal(first, pairs[0])
    assert not torch.equal(pairs[0], pairs[2])


def test_random_numbers_advance_once_a_step():
    (param,) = parameters((3, 3))
    optimizer = MARS([param], is_approx=False)

    def closure():
        param.grad = torch.randn(3, 3)
        random.random()

    torch.manual_seed(5)
    random.seed(5)
    for _ in range(3):
        optimizer.step(closure)
    ended = random_states()
    torch.manual_seed(5)
    random.seed(5)
    for _ in range(3):
        closure()
    assert torch.equal(ended[0], random_states()[0])
    assert ended[1] == random_states()[1]


@pytest.mark.parametrize("failing_call", [1, 2])
def test_a_closure_that_raises_leaves_everything_as_it_was(failing_call):
    model = model_with_everything()
    optimizer = MARS(model.parameters(), is_approx=False)
    optimizer.track_buffers(model)
    batch = torch.randn(16, 6)
    calls = []

    def closure():
        calls.append(None)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        random.random()
        if len(calls) == fail_at:
            raise KeyError("out of data")

    fail_at = None
    for _ in range(2):
        optimizer.step(closure)
    before, states = snapshot(optimizer, model), random_states()
    fail_at = len(calls) + failing_call
    with pytest.raises(KeyError, match="out of data"):
        optimizer.step(closure)
    assert_equal(snapshot(optimizer, model), before)
    assert torch.equal(random_states()[0], states[0])
    assert random_states()[1] == states[1]
    fail_at = None
    optimizer.zero_grad()
    optimizer.step(closure)  # and training goes on


def test_a_failure_inside_previous_point_brings_the_parameters_back():
    params = parameters((6, 4), (4,))
    optimizer = MARS(params, is_approx=False)
    advance(optimizer, Quadratic(params), range(2))
    before = snapshot(optimizer)

    def fail():
        with optimizer.previous_point():
            assert not torch.equal(params[0], before[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert_equal(snapshot(optimizer), before)
    with pytest.raises(RuntimeError, match="no gradient at the previous point"):
        optimizer.step()


def test_micro_batches_inside_the_closure_equal_one_batch():
    def run(pieces):
        torch.manual_seed(0)
        model = nn.Linear(5, 3).double()
        optimizer = MARS(model.parameters(), is_approx=False)
        for step in range(4):
            batch = torch.full((4, 5), step + 1.0).double() + torch.arange(4).view(4, 1)

            def closure(batch=batch):
                optimizer.zero_grad()
                for piece in batch.chunk(pieces):
                    (model(piece).square().sum() / 4).backward()

            optimizer.step(closure)
        return list(model.parameters())

    assert_close(run(4), run(1), 1e-12)


def test_gradients_from_outside_the_closure_are_not_lost_silently():
    """A trainer that accumulates over several calls would train on the last micro-batch alone."""
    params = parameters((3, 2))
    optimizer = MARS(params, is_approx=False)
    problem = Quadratic(params)
    advance(optimizer, problem, range(2))
    before = snapshot(optimizer)
    problem(2)  # a micro-batch outside
    with pytest.raises(RuntimeError, match="outside the closure"):
        optimizer.step(lambda: problem(2))
    assert_equal(snapshot(optimizer), before)
    optimizer.zero_grad(set_to_none=False)  # cleared in place: nothing to lose
    optimizer.step(lambda: problem(2))


@pytest.mark.parametrize("clear", ["inside", "outside", "in place"])
def test_it_does_not_matter_where_gradients_are_cleared(clear):
    def run(how):
        (param,) = parameters((4, 3))
        optimizer = MARS([param], is_approx=False)
        weights = torch.arange(12.0).view(4, 3) + 1

        def closure():
            if how == "inside":
                optimizer.zero_grad()
            if how == "in place":
                optimizer.zero_grad(set_to_none=False)
            (param.square() * weights).sum().backward()

        for _ in range(4):
            optimizer.step(closure)
            if how == "outside":
                optimizer.zero_grad()
        return [param]

    assert_equal(run(clear), run("inside"))


def test_clipping_in_the_closure_clips_both_gradients():
    def run(clip):
        params = parameters((4, 3), dtype=torch.float64)
        optimizer = MARS(params, is_approx=False, clip=None, gamma=0.5)

        def closure():
            clip(lambda: Quadratic(params)(0), params)

        for _ in range(3):
            optimizer.step(closure)
        return params

    def by_torch(evaluate, params):
        evaluate()
        torch.nn.utils.clip_grad_norm_(params, 0.1)

    def by_hand(evaluate, params):
        evaluate()
        params[0].grad = params[0].grad * (0.1 / (params[0].grad.norm() + 1e-6))

    assert_close(run(by_torch), run(by_hand), 1e-13)


def half_precision_run(step_of, steps=6, overflow_at=()):
    """Train an fp16-autocast model; ``step_of(optimizer, scaler, backward, t)`` takes a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = MARS(model.parameters(), is_approx=False, lr=0.01, nonfinite="skip")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=100)
    batches = torch.randn(steps, 16, 6, generator=torch.Generator().manual_seed(1))
    scales = []
    for t in range(steps):
        calls = []

        def backward(t=t, calls=calls):
            calls.append(None)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(batches[t]).float().square().mean()
            scaler.scale(loss).backward()
            if (t, len(calls)) in overflow_at:
                model[0].weight.grad[0, 0] = float("inf")
            return loss.item()

        step_of(optimizer, scaler, backward)
        scaler.update()
        scales.append(scaler.get_scale())
    return model, optimizer, scales


def by_context(optimizer, scaler, backward):
    params = optimizer.param_groups[0]["params"]
    with optimizer.previous_point() as previous:
        backward()
        scaler.unscale_(previous)
        torch.nn.utils.clip_grad_norm_(params, 1.0)
    backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(params, 1.0)
    scaler.step(optimizer)


def by_closure(optimizer, scaler, backward):
    def closure():
        loss = backward()
        scaler.unscale_(optimizer.unscale_target)
        torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
        return loss

    optimizer.step(closure)


def test_a_grad_scaler_works_in_both_evaluations():
    context, _, _ = half_precision_run(by_context)
    closure, _, _ = half_precision_run(by_closure)
    assert_equal(list(context.parameters()), list(closure.parameters()))

    def unscaled(optimizer, scaler, backward):
        # The same with the scale taken out by hand: a power of two, so nothing is rounded.
        params = optimizer.param_groups[0]["params"]

        def closure():
            backward()
            for p in params:
                p.grad /= 2.0**10
            torch.nn.utils.clip_grad_norm_(params, 1.0)

        optimizer.step(closure)
        scaler.unscale_(optimizer)

    by_hand, _, _ = half_precision_run(unscaled)
    assert_close(list(context.parameters()), list(by_hand.parameters()), 1e-6)


@pytest.mark.parametrize("evaluation", [1, 2])
def test_an_overflow_in_either_evaluation_halves_the_scale_and_spoils_nothing(evaluation):
    for step_of in (by_context, by_closure):
        # The closure evaluates once at the first step, so that step 3 has two evaluations.
        model, _, scales = half_precision_run(step_of, overflow_at={(3, evaluation)})
        assert scales == [2.0**10] * 3 + [2.0**9] * 3
        assert all(p.isfinite().all() for p in model.parameters())


def test_a_bad_previous_gradient_only_costs_the_correction_where_it_is_bad():
    """With policy "propagate" a NaN at the previous point must not enter the state."""
    params, others = parameters((4, 3), (3, 3)), parameters((4, 3), (3, 3))
    spoiled = MARS(params, is_approx=False)
    plain = MARS(others, is_approx=False)
    for optimizer, tensors in ((spoiled, params), (plain, others)):
        advance(optimizer, Quadratic(tensors), range(2))
        with optimizer.previous_point():
            Quadratic(tensors)(2)
            if optimizer is spoiled:
                tensors[0].grad[0, 0] = float("nan")
        Quadratic(tensors)(2)
        if optimizer is plain:
            optimizer._exact._evaluated[others[0]][0, 0] = others[0].grad[0, 0]  # c = g
        optimizer.step()
    assert_equal(params, others)


def test_unused_parameters_are_left_alone_and_join_later():
    """The authors' exact mode raises KeyError for an unused parameter."""
    params = parameters((4, 3), (4, 3))
    optimizer = MARS(params, is_approx=False)
    problem = Quadratic(params)
    for step in range(3):
        optimizer.step(lambda step=step: problem(step, missing=(1,)))
        optimizer.zero_grad()
    assert_equal([params[1]], [parameters((4, 3), (4, 3))[1]])
    assert params[1] not in optimizer.state
    advance(optimizer, problem, [3, 4])
    assert optimizer.state[params[1]]["step"] == 2


@pytest.mark.parametrize("way", [*WAYS, "protocol"])
@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resume_is_bitwise_identical(way, mars_type, dtype, tmp_path):
    def go(optimizer, problem, steps):
        if way != "protocol":
            return advance(optimizer, problem, steps, way)
        for step in steps:
            problem(step + 1)
            optimizer.update_previous_grad()
            problem(step)
            optimizer.step()
            optimizer.update_last_grad()
        return None

    params = parameters((6, 4), (4,), dtype=dtype)
    optimizer = MARS(params, is_approx=False, mars_type=mars_type, gamma=0.3, lr=0.05)
    go(optimizer, Quadratic(params), range(3))
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    copies = [nn.Parameter(p.detach().clone()) for p in params]
    fresh = MARS(copies, is_approx=False)
    fresh.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    go(optimizer, Quadratic(params), range(3, 6))
    go(fresh, Quadratic(copies), range(3, 6))
    assert_equal(params, copies)


def test_memory_is_one_copy_of_the_parameters_and_one_gradient():
    params = parameters((64, 32), (32,))
    optimizer = MARS(params, is_approx=False)
    advance(optimizer, Quadratic(params), range(2))
    matrix, vector = optimizer.describe()
    state = optimizer.state[params[0]]
    assert set(state) == {"step", "exp_avg", "exp_avg_sq", "last_param"}
    assert matrix.state_bytes == 12 * 64 * 32 == sum(v.nbytes for v in state.values()) - 4
    assert vector.state_bytes == 12 * 32
    assert optimizer.describe().visit_bytes == 4 * 64 * 32
    assert str(optimizer.describe()).endswith(
        "24,960 bytes of state, 8,192 more during a step (gradients at the previous point)"
    )


def test_the_authors_protocol_keeps_no_point():
    params = parameters((6, 4), (4,))
    optimizer = MARS(params, is_approx=False)
    problem = Quadratic(params)
    for step in range(3):
        problem(step + 1)
        optimizer.update_previous_grad()
        problem(step)
        optimizer.step()
        optimizer.update_last_grad()
    assert set(optimizer.state[params[0]]) == {"step", "exp_avg", "exp_avg_sq", "last_grad"}
    problem(3)
    optimizer.step()
    with pytest.raises(RuntimeError, match="update_previous_grad"):
        optimizer.step()  # nobody looked ahead


def test_a_step_without_a_previous_gradient_is_refused_after_the_first():
    params = parameters((3, 2))
    optimizer = MARS(params, is_approx=False)
    params[0].grad = torch.ones(3, 2)
    optimizer.step()  # the first step has no previous point
    with pytest.raises(RuntimeError, match=r"closure.*previous_point"):
        optimizer.step()


def test_previous_point_belongs_to_exact_mode():
    optimizer = MARS(parameters((3, 2)))
    with pytest.raises(RuntimeError, match="is_approx=False"), optimizer.previous_point():
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lean": True, "clip": None, "second_moment": "gradient"}, "lean=True needs is_approx"),
        ({"differentiable": True}, "differentiable=True needs is_approx"),
    ],
)
def test_options_that_exact_mode_cannot_honour_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MARS(parameters((3, 2)), is_approx=False, **options)


def test_modes_are_not_mixed():
    first, second = parameters((3, 2), (3, 2))
    with pytest.raises(ValueError, match="is_approx must be the same"):
        MARS([{"params": [first]}, {"params": [second], "is_approx": False}])


def test_skipped_steps_keep_the_previous_point():
    for capturable in (False, True):
        params = parameters((3, 2))
        optimizer = MARS(params, is_approx=False, nonfinite="skip", capturable=capturable)
        problem = Quadratic(params)
        advance(optimizer, problem, range(2))
        before = snapshot(optimizer)

        def spoiled(params=params, problem=problem):
            problem(2)
            params[0].grad[0] = float("inf")

        optimizer.step(spoiled)
        assert_equal(snapshot(optimizer), before)
        assert optimizer.skipped_steps == 1


def test_a_parameter_that_rests_is_visited_where_it_was_one_step_ago():
    params = parameters((3, 2), (3, 2))
    optimizer = MARS(params, is_approx=False, lr=0.1)
    problem = Quadratic(params)
    advance(optimizer, problem, range(2))
    optimizer.step(lambda: (optimizer.zero_grad(), problem(2, missing=(1,)))[1])
    resting = params[1].detach().clone()
    with optimizer.previous_point():
        assert torch.equal(params[1], resting)
        assert not torch.equal(params[0], optimizer.state[params[0]]["last_param"])


def test_casts_of_an_outer_autocast_block_are_not_reused():
    def run(outer):
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer = MARS(model.parameters(), is_approx=False, lr=0.3, gamma=1.0)

        def closure():
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=True):
                loss = model(torch.ones(2, 8)).float().square().mean()
            loss.backward()
            return loss.item()

        losses = []
        for _ in range(4):
            if outer:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    losses.append(optimizer.step(closure))
            else:
                losses.append(optimizer.step(closure))
        return losses

    assert run(outer=True) == run(outer=False)


def test_ddp_gradients_in_buckets_are_kept_apart(tmp_path):
    def run(wrap):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
        wrapped = wrap(model)
        optimizer = MARS(wrapped.parameters(), is_approx=False, gamma=0.5)
        for step in range(4):

            def closure(step=step):
                optimizer.zero_grad()
                wrapped(torch.full((3, 5), step + 1.0)).square().mean().backward()

            optimizer.step(closure)
        return list(model.parameters())

    plain = run(lambda model: model)
    init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        ddp = run(lambda m: DistributedDataParallel(m, gradient_as_bucket_view=True))
    finally:
        destroy_process_group()
    assert_equal(ddp, plain)


@pytest.mark.parametrize("gamma", [0.025, 0.25])
def test_exact_momentum_is_nearer_to_the_true_gradient_than_an_average(gamma):
    """Over 256 seeds of a stochastic quadratic: the confidence interval of the ratio is below 1."""
    average = variance.errors("average", seeds=256)
    _, _, upper = variance.interval(variance.errors("exact", seeds=256, gamma=gamma) / average)
    assert upper < 1


def test_a_large_gamma_pays_in_exact_mode_only():
    average = variance.errors("average", seeds=256)
    _, _, exact = variance.interval(variance.errors("exact", seeds=256, gamma=0.75) / average)
    _, approx, _ = variance.interval(variance.errors("approx", seeds=256, gamma=0.75) / average)
    assert exact < 0.2 < 1 < approx


def test_a_step_holds_one_gradient_more_than_an_approx_one():
    params = [nn.Parameter(torch.randn(256, 1024)) for _ in range(20)]
    optimizer = MARS(params, is_approx=False)
    model_bytes = sum(p.nbytes for p in params)

    def closure():
        optimizer.zero_grad()
        for param in params:
            param.grad = param.detach().clone()

    for _ in range(2):
        optimizer.step(closure)
    optimizer.zero_grad()  # so that the present gradients are counted too
    held = peak_extra_bytes(optimizer, closure)
    # The gradients at both points, and a few tensors in passing.
    assert 2 * model_bytes <= held <= 2 * model_bytes + 4 * params[0].nbytes
