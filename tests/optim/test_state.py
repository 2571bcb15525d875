"""State: what is stored, and that it survives every way of saving it."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

import problems
from mars import MARS
from problems import LEAN, TYPES, assert_equal, parameters, train, trained


def falling_gamma(step: int) -> float:
    return 0.1 / step


def bytes_per_parameter(optimizer: MARS, param: nn.Parameter) -> float:
    state = optimizer.state[param]
    return sum(v.nbytes for k, v in state.items() if k != "step") / param.numel()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mars_type": "mars-adamw"}, 12),
        ({"mars_type": "mars-adamw", "last_grad_dtype": torch.bfloat16}, 10),
        ({"mars_type": "mars-adamw", **LEAN}, 8),
        ({"mars_type": "mars-adamw", "amsgrad": True}, 16),
        ({"mars_type": "mars-lion"}, 8),
        ({"mars_type": "mars-lion", **LEAN}, 4),
        ({"mars_type": "mars-shampoo"}, 8),
        ({"mars_type": "mars-shampoo", **LEAN}, 4),
        ({"mars_type": "mars-m"}, 8),
        ({"mars_type": "mars-m", **LEAN}, 4),
    ],
)
def test_state_bytes_per_float32_parameter(options, expected):
    params, optimizer = trained(2, **options)
    assert bytes_per_parameter(optimizer, params[0]) == expected
    assert optimizer.describe().rows[0].state_bytes == expected * params[0].numel()
    plain = 12 if options.get("amsgrad") else 8
    assert bytes_per_parameter(optimizer, params[1]) == plain  # vectors: plain AdamW


def round_trip(packed, way: str):
    if way == "memory":
        return packed
    buffer = io.BytesIO()
    torch.save(packed, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("way", ["memory", "file"])
@pytest.mark.parametrize("mars_type", TYPES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        LEAN,
        {"gamma": falling_gamma},
        {"gamma": falling_gamma, **LEAN},
        {"last_grad_dtype": torch.bfloat16, "amsgrad": True},
        {"nonfinite": "skip"},
        {"lr": torch.tensor(0.01)},
    ],
    ids=["plain", "lean", "schedule", "lean schedule", "bf16", "skip", "tensor lr"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resume_is_bitwise_identical(options, mars_type, way, dtype):
    shapes = ((6, 4), (3, 2, 2, 2), (4,))
    params = parameters(*shapes, dtype=dtype)
    groups = [{"params": params[:1], "weight_decay": 0.3}, {"params": params[1:], "lr_1d": 0.05}]
    optimizer = MARS(groups, mars_type=mars_type, **options)
    train(optimizer, params, 3)

    copies = [nn.Parameter(p.detach().clone()) for p in params]
    gamma = {"gamma": options["gamma"]} if "gamma" in options else {}
    fresh = MARS([{"params": copies[:1]}, {"params": copies[1:]}], **gamma)
    fresh.load_state_dict(round_trip(optimizer.state_dict(), way))
    # Interleaved, so that shared memory between the two would show.
    for seed in (5, 6):
        train(optimizer, params, 2, seed=seed)
        train(fresh, copies, 2, seed=seed)
        assert_equal(params, copies)
    for old, new in zip(optimizer.state.values(), fresh.state.values(), strict=True):
        assert old.keys() == new.keys()
        assert all(torch.equal(old[k], new[k]) and old[k].dtype == new[k].dtype for k in old)


def test_a_state_dict_holds_no_code():
    _, optimizer = trained(1, gamma=falling_gamma)
    packed = optimizer.state_dict()
    assert packed["param_groups"][0]["gamma"] == "callable"
    assert optimizer.param_groups[0]["gamma"] is falling_gamma


def test_a_schedule_is_not_forgotten_silently():
    _, optimizer = trained(1, gamma=falling_gamma)
    params = parameters((6, 4), (4,))
    fresh = MARS(params)
    with pytest.raises(ValueError, match=r"callable gamma.*gamma=0.025"):
        fresh.load_state_dict(optimizer.state_dict())
    assert not fresh.state
    assert fresh.param_groups[0]["gamma"] == 0.025


def test_a_foreign_state_dict_is_refused_before_anything_changes():
    params, optimizer = trained(2)
    before = copy.deepcopy(optimizer.state_dict())
    adamw = torch.optim.AdamW(params)
    train(adamw, params, 1)
    message = r"parameter 0 of group 0 .* has step, exp_avg, exp_avg_sq.*ask for.*from_adamw"
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(adamw.state_dict())
    _, other = trained(2, shapes=((5, 4), (4,)))
    with pytest.raises(ValueError, match=r"exp_avg for parameter 0 .* has shape \(5, 4\)"):
        optimizer.load_state_dict(other.state_dict())
    spoiled = copy.deepcopy(before)
    spoiled["param_groups"][0]["betas"] = (0.9, 1.5)
    with pytest.raises(ValueError, match="betas"):
        optimizer.load_state_dict(spoiled)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({**before, "param_groups": []})
    after = optimizer.state_dict()
    for key, state in before["state"].items():
        assert all(torch.equal(state[k], after["state"][key][k]) for k in state)


def test_load_hooks_of_others_keep_their_order():
    _, optimizer = trained(2)
    fresh = MARS(parameters((6, 4), (4,)))
    seen = []

    def double_lr(_, state_dict):
        groups = [{**g, "lr": 2 * g["lr"]} for g in state_dict["param_groups"]]
        return {**state_dict, "param_groups": groups}

    fresh.register_load_state_dict_pre_hook(double_lr)
    fresh.register_load_state_dict_post_hook(
        lambda opt: seen.extend(s["exp_avg"].dtype for s in opt.state.values())
    )
    fresh.load_state_dict(optimizer.state_dict())
    assert fresh.param_groups[0]["lr"] == 2 * optimizer.param_groups[0]["lr"]
    assert seen == [torch.float32, torch.float32]


@pytest.mark.parametrize("way", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_of_the_optimizer_continue_alike(way):
    params, optimizer = trained(3, gamma=falling_gamma, nonfinite="skip")
    other_params, other = way((params, optimizer))
    train(optimizer, params, 2, seed=4)
    train(other, other_params, 2, seed=4)
    assert_equal(params, other_params)
    assert other.skipped_steps == 0


def test_a_group_can_be_added_during_training():
    params, optimizer = trained(2)
    (late,) = parameters((3, 5), seed=9)
    optimizer.add_param_group({"params": [late], "lr": 0.5, "mars_type": "mars-lion"})
    before = late.detach().clone()
    late.grad = torch.ones(3, 5)
    optimizer.step()
    assert torch.allclose(before - late.detach(), torch.full((3, 5), 0.5))
    assert optimizer.state[params[0]]["step"] == 3
    assert optimizer.state[late]["step"] == 1


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_state_keeps_the_memory_format(memory_format):
    param = nn.Parameter(torch.randn(4, 3, 2, 2).contiguous(memory_format=memory_format))
    param.grad = torch.randn_like(param)
    optimizer = MARS([param])
    optimizer.step()
    for key in ("exp_avg", "exp_avg_sq", "last_grad"):
        assert optimizer.state[param][key].stride() == param.stride()
    reloaded = MARS([param])
    reloaded.load_state_dict(optimizer.state_dict())
    assert reloaded.state[param]["exp_avg"].stride() == param.stride()


@pytest.mark.parametrize("scheduler", ["OneCycleLR", "CosineAnnealingLR", "LambdaLR", "SWALR"])
def test_learning_rate_schedulers_drive_both_learning_rates(scheduler):
    make = {
        "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=8),
        "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 8),
        "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)),
        "SWALR": lambda o: SWALR(o, swa_lr=0.05, anneal_epochs=3),
    }[scheduler]
    params = parameters((6, 4), (4,))
    optimizer = MARS(params, lr=0.02, lr_1d=0.01)
    schedule = make(optimizer)
    for grads in problems.gradients(params, 6):
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        optimizer.step()
        schedule.step()
        matrix, vector = optimizer.describe()
        assert matrix.lr == pytest.approx(optimizer.param_groups[0]["lr"])
        assert vector.lr == pytest.approx(matrix.lr / 2)
    assert matrix.lr != 0.02


def test_step_hooks_and_weight_averaging_work():
    model = nn.Linear(3, 2)
    optimizer = MARS(model.parameters(), lr=0.1)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))
    for _ in range(3):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        average.update_parameters(model)
        optimizer.zero_grad()
    assert calls == ["pre", "post"] * 3
    assert not torch.equal(average.module.weight, model.weight)


def test_the_closure_is_evaluated_once_with_gradients_enabled():
    (param,) = parameters((3, 2))
    optimizer = MARS([param])
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss.item()

    with torch.no_grad():
        loss = optimizer.step(closure)
    assert calls == [True]
    assert loss == pytest.approx(parameters((3, 2))[0].square().sum().item())


def test_distributed_checkpointing_learns_the_state_of_a_fresh_optimizer():
    model = nn.Linear(3, 2)
    optimizer = MARS(model.parameters(), mars_type="mars-m")
    before = [p.detach().clone() for p in model.parameters()]
    packed = get_optimizer_state_dict(model, optimizer)
    assert set(packed["state"]["weight"]) == {"step", "exp_avg", "last_grad"}
    assert set(packed["state"]["bias"]) == {"step", "exp_avg", "exp_avg_sq"}
    assert_equal(list(model.parameters()), before)


def test_a_grad_scaler_treats_mars_as_it_treats_adamw():
    def run(make):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = make(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
        scales, moved = [], []
        for step in range(6):
            before = model.weight.detach().clone()
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(torch.ones(2, 4)).float().square().mean()
            scaler.scale(loss).backward()
            if step == 3:
                model.weight.grad.fill_(float("inf"))
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            moved.append(not torch.equal(before, model.weight))
        return scales, moved

    ours = run(lambda p: MARS(p, lr=0.01))
    assert ours == run(lambda p: torch.optim.AdamW(p, lr=0.01))
    assert ours[1] == [True, True, True, False, True, True]


def test_loaded_state_takes_the_parameters_memory_format():
    plain = nn.Parameter(torch.randn(4, 3, 2, 2))
    plain.grad = torch.randn_like(plain)
    optimizer = MARS([plain])
    optimizer.step()
    turned = nn.Parameter(plain.detach().contiguous(memory_format=torch.channels_last))
    fresh = MARS([turned])
    fresh.load_state_dict(optimizer.state_dict())
    for key in ("exp_avg", "exp_avg_sq", "last_grad"):
        assert fresh.state[turned][key].stride() == turned.stride()
        assert torch.equal(fresh.state[turned][key], optimizer.state[plain][key])


def test_a_state_dict_of_plain_numbers_loads():
    _, optimizer = trained(2)
    packed = optimizer.state_dict()
    for state in packed["state"].values():
        state["step"] = 2
    for group in packed["param_groups"]:
        del group["base_lr"]
    params = parameters((6, 4), (4,))
    fresh = MARS(params, lr=0.5)
    fresh.load_state_dict(packed)
    train(fresh, params, 1)
    assert fresh.state[params[0]]["step"] == 3
    assert fresh.param_groups[0]["base_lr"] == 0.5


def test_a_constant_gamma_does_not_replace_a_schedule_silently():
    _, optimizer = trained(1)
    fresh = MARS(parameters((6, 4), (4,)), gamma=falling_gamma)
    with pytest.raises(ValueError, match=r"gamma=0.025.*callable"):
        fresh.load_state_dict(optimizer.state_dict())


def test_a_lean_state_does_not_pass_for_a_buffered_one():
    _, optimizer = trained(2, **LEAN)
    packed = optimizer.state_dict()
    packed["param_groups"][0]["lean"] = False
    with pytest.raises(ValueError, match=r"ask for .*last_grad"):
        MARS(parameters((6, 4), (4,))).load_state_dict(packed)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("is_approx", [True, False])
def test_distributed_checkpointing_round_trips(flat, is_approx):
    options = StateDictOptions(flatten_optimizer_state_dict=flat)

    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        return model, MARS(model.parameters(), mars_type="mars-m", is_approx=is_approx)

    def go(model, optimizer, steps):
        for step in steps:

            def closure(step=step):
                optimizer.zero_grad()
                model(torch.full((2, 3), step + 1.0)).square().mean().backward()

            optimizer.step(closure)

    model, optimizer = build()
    go(model, optimizer, range(3))
    packed = get_optimizer_state_dict(model, optimizer, options=options)
    other, fresh = build()
    other.load_state_dict(model.state_dict())
    set_optimizer_state_dict(other, fresh, packed, options=options)
    go(model, optimizer, range(3, 6))
    go(other, fresh, range(3, 6))
    assert_equal(list(model.parameters()), list(other.parameters()))


def test_a_scheduler_resumes_with_the_optimizer():
    def build(params):
        optimizer = MARS(params, lr=0.05, lr_1d=0.02)
        return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)

    def go(optimizer, scheduler, params, steps, seed):
        for grads in problems.gradients(params, steps, seed):
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad
            optimizer.step()
            scheduler.step()

    params = parameters((6, 4), (4,))
    optimizer, scheduler = build(params)
    go(optimizer, scheduler, params, 4, 1)
    copies = [nn.Parameter(p.detach().clone()) for p in params]
    fresh, resumed = build(copies)
    fresh.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(scheduler.state_dict())
    go(optimizer, scheduler, params, 4, 2)
    go(fresh, resumed, copies, 4, 2)
    assert_equal(params, copies)
