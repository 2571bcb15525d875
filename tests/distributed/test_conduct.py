"""How MARS behaves among ranks: what travels, who computes, what is refused, what is saved."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.flop_counter import FlopCounterMode

from distributed.processes import run
from distributed.small_gpt import Mode, batch, build, train, whole
from mars import MARS
from mars.optim import exchange
from mars.optim.measures import correction_measures
from mars.optim.routing import SMALLEST_COMPILED
from mars.optim.rules import muon, shampoo

Facts = dict[str, Any]


@contextmanager
def counted_products() -> Iterator[list[torch.Size]]:
    """Note the shape of every matrix that is orthogonalised in this process."""
    shapes: list[torch.Size] = []
    own = muon.orthogonalize

    def counting(matrices: list[Tensor], **options: Any) -> list[Tensor]:
        shapes.extend(matrix.shape for matrix in matrices)
        return own(matrices, **options)

    muon.orthogonalize = shampoo.orthogonalize = counting
    try:
        yield shapes
    finally:
        muon.orthogonalize = shampoo.orthogonalize = own


@contextmanager
def counted_sends() -> Iterator[dict[str, int]]:
    """Note how many numbers this process gives to all-to-alls, and to or from broadcasts."""
    sent: dict[str, int] = {}

    def counted(name: str, *, place: int) -> Callable[..., Any]:
        own = getattr(dist, name)

        def counting(*given: Any, **more: Any) -> Any:
            sent[name] = sent.get(name, 0) + given[place].numel()
            return own(*given, **more)

        return counting

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_to_all_single", counted("all_to_all_single", place=1))
        patch.setattr(dist, "broadcast", counted("broadcast", place=0))
        yield sent


def _gradients(trained: Any, step: int, rank: int, ranks: int) -> None:
    trained.optimizer.zero_grad()
    trained.module(*batch(step, rank=rank, ranks=ranks)).backward()


def _traffic(rank: int, ranks: int) -> Facts:
    """Count what one step sends, and which matrices this rank orthogonalises."""
    facts: Facts = {}
    modes: list[Mode] = ["ddp", "fsdp2", *(["hsdp"] if ranks == 4 else [])]  # type: ignore[list-item]
    for mode in modes:
        strict = build(mode, max_norm=0.1, nonfinite="raise")
        train(strict, range(1), rank=rank, ranks=ranks)
        _gradients(strict, 1, rank, ranks)
        with CommDebugMode() as messages:
            strict.optimizer.step()
        facts[f"{mode} strict mars-adamw"] = {"collectives": messages.get_total_counts()}
        for name in ("mars-adamw", "mars-lion", "mars-shampoo", "mars-m"):
            trained = build(mode, mars_type=name, max_norm=0.1, nonfinite="skip")
            train(trained, range(1), rank=rank, ranks=ranks)
            _gradients(trained, 1, rank, ranks)
            with CommDebugMode() as messages, counted_products() as shapes:
                trained.optimizer.step()
            _gradients(trained, 2, rank, ranks)
            with FlopCounterMode(display=False) as products, counted_sends() as sent:
                trained.optimizer.step()
            facts[f"{mode} {name}"] = {
                "collectives": messages.get_total_counts(),
                "sent": dict(sent),
                "flops": products.get_total_flops(),
                "shapes": [tuple(shape) for shape in shapes],
            }
    return facts


def _wrappers(rank: int, ranks: int) -> Facts:
    """Return the parameters after steps under DDP with options that alias or delay gradients."""
    facts: Facts = {}
    for name, options in {
        "plain": {},
        "views": {"gradient_as_bucket_view": True},
        "static": {"static_graph": True, "find_unused_parameters": False},
    }.items():
        trained = build("ddp", ddp=options, max_norm=0.1)
        train(trained, range(6), rank=rank, ranks=ranks)
        facts[name] = trained.whole()
    trained = build("ddp", ddp={"gradient_as_bucket_view": True}, max_norm=0.1)
    for step in range(6):
        trained.optimizer.zero_grad()
        tokens, targets = batch(step, rank=rank, ranks=ranks)
        halves = list(zip(tokens.chunk(2), targets.chunk(2), strict=True))
        with trained.module.no_sync():  # type: ignore[operator]
            (trained.module(*halves[0]) / 2).backward()
        (trained.module(*halves[1]) / 2).backward()
        trained.optimizer.step()
    facts["accumulated"] = trained.whole()
    return facts


def _engines(rank: int, ranks: int) -> Facts:
    """Return parameters after steps of every engine on shards, one large enough for a kernel."""
    del rank
    mesh = init_device_mesh("cpu", (ranks,))
    shapes = (260, 300), (7, 9)
    assert prod(shapes[0]) // ranks >= SMALLEST_COMPILED
    facts: Facts = {}
    for name in ("mars-adamw", "mars-lion", "mars-m"):
        for fused in (False, True):
            generator = torch.Generator().manual_seed(0)

            def sharded(shape: tuple[int, ...]) -> Tensor:
                whole = torch.randn(shape, generator=generator)  # noqa: B023
                return distribute_tensor(whole, mesh, [Shard(0)])

            params = [nn.Parameter(sharded(shape)) for shape in shapes]
            optimizer = MARS(params, mars_type=name, max_norm=0.1, fused=fused)
            for _ in range(3):
                for param in params:
                    param.grad = sharded(tuple(param.shape))
                optimizer.step()
            facts[f"engines of {name} {fused}"] = [row.engine for row in optimizer.describe()]
            facts[f"{name} {fused}"] = {str(i): p.full_tensor() for i, p in enumerate(params)}
    return facts


def _nonfinite(rank: int, ranks: int) -> Facts:
    """Break one rank's part of one gradient."""
    facts: Facts = {}
    for policy in ("skip", "raise"):
        trained = build("fsdp2", nonfinite=policy)
        train(trained, range(2), rank=rank, ranks=ranks)
        before = trained.whole()
        _gradients(trained, 2, rank, ranks)
        grad = trained.model.gpt.wte.weight.grad
        assert isinstance(grad, DTensor)
        if rank == 1:
            grad.to_local()[0, 0] = float("nan")
        message = ""
        try:
            trained.optimizer.step()
        except RuntimeError as error:
            message = str(error)
        after = trained.whole()
        facts[policy] = {
            "message": message,
            "equal": all(torch.equal(after[key], before[key]) for key in before),
            "skipped": trained.optimizer.skipped_steps,
        }
    return facts


def _measures(rank: int, ranks: int) -> Facts:
    facts: Facts = {}
    for mode in ("ddp", "fsdp2"):
        trained = build(mode, max_norm=0.1)
        train(trained, range(3), rank=rank, ranks=ranks)
        _gradients(trained, 3, rank, ranks)
        facts[mode] = correction_measures(trained.optimizer)
    return facts


def _low_precision(rank: int, ranks: int) -> Facts:
    """Train under FSDP2 that computes in bfloat16 and keeps float32."""
    facts: Facts = {}
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name in ("mars-adamw", "mars-m"):
        trained = build("fsdp2", policy=policy, mars_type=name, max_norm=0.1)
        train(trained, range(12), rank=rank, ranks=ranks)
        full = build("fsdp2", mars_type=name, max_norm=0.1)
        train(full, range(12), rank=rank, ranks=ranks)
        state = trained.optimizer.state[trained.model.gpt.wte.weight]
        facts[name] = {
            "dtypes": [str(t.dtype) for t in (trained.model.gpt.wte.weight, state["exp_avg"])],
            "losses": (trained.losses, full.losses),
        }
    return facts


def _states(rank: int, ranks: int) -> Facts:
    """Return what there is of state, and that a copy and a round trip keep it."""
    trained = build("fsdp2", mars_type="mars-m")
    described = trained.optimizer.describe().state_bytes
    train(trained, range(2), rank=rank, ranks=ranks)
    packed = trained.optimizer.state_dict()
    kept = {
        f"{index}.{key}": tuple(value.shape)
        for index, state in packed["state"].items()
        for key, value in state.items()
    }
    held = sum(
        value.to_local().nbytes
        for state in packed["state"].values()
        for value in state.values()
        if isinstance(value, DTensor)
    )
    other = build("fsdp2", mars_type="mars-m")
    other.optimizer.load_state_dict(packed)
    full = {
        "param_groups": packed["param_groups"],
        "state": {i: {k: whole(v) for k, v in s.items()} for i, s in packed["state"].items()},
    }
    from_full = build("fsdp2", mars_type="mars-m")
    from_full.optimizer.load_state_dict(full)
    return {
        "keys": kept,
        "bytes": (described, held),
        "round trip": _equal(packed, other.optimizer.state_dict()),
        "from whole tensors": _equal(packed, from_full.optimizer.state_dict()),
        "replicas": _replicas_stay_out(),
    }


def _equal(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return all(
        torch.equal(whole(value), whole(two["state"][index][key]))
        for index, state in one["state"].items()
        for key, value in state.items()
    )


def _replicas_stay_out() -> Facts:
    """Save and load an optimizer whose groups have a process group."""
    trained = build("ddp", mars_type="mars-m")
    packed = trained.optimizer.state_dict()
    loaded = build("ddp", mars_type="mars-m").optimizer
    loaded.load_state_dict(packed)
    duplicate = copy.deepcopy(trained.optimizer)
    return {
        "saved": [group["process_group"] is None for group in packed["param_groups"]],
        "kept": [group["process_group"] is not None for group in loaded.param_groups],
        "copied": len(duplicate.param_groups),
        "names": loaded.param_groups[0]["param_names"][:2],
    }


class Perceptron(nn.Module):
    """Two matrices that tensor parallelism divides by columns and by rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into = nn.Linear(6, 10, bias=False)
        self.out = nn.Linear(10, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output."""
        return self.out(torch.tanh(self.into(x)))


def perceptron(
    ranks: int,
    *,
    name: str,
    tensor_parallel: int,
    shard: bool,
) -> Tensor:
    """Return both matrices after steps, computed alone or on a mesh."""
    model = Perceptron()
    inputs = torch.randn(8, 8, 6, generator=torch.Generator().manual_seed(1))
    if tensor_parallel:
        mesh = init_device_mesh(
            "cpu", (ranks // tensor_parallel, tensor_parallel), mesh_dim_names=("data", "tensor")
        )
        plan = {"into": ColwiseParallel(), "out": RowwiseParallel()}
        parallelize_module(model, mesh["tensor"], plan)
        if shard:
            fully_shard(model, mesh=mesh["data"])
    options: dict[str, Any] = {"mars_type": name, "max_norm": 0.05}
    matrices = {"params": list(model.parameters()), "role": "matrix"}
    optimizer = MARS([matrices], lr=1e-2, **options)
    for step in range(5):
        optimizer.zero_grad()
        (model(inputs[step]) - inputs[step].roll(1, 0)).square().mean().backward()
        optimizer.step()
    return torch.cat([whole(p).flatten() for p in model.parameters()])


def uneven(ranks: int) -> Tensor:
    """Return a matrix of nine rows after steps; tensor parallelism and FSDP2 divide it unevenly."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9, bias=False))
    if ranks > 1:
        mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel()})
        fully_shard(model, mesh=mesh["data"])
    param = model[0].weight
    optimizer = MARS([param], lr=0.1, mars_type="mars-m", max_norm=0.5)
    for _ in range(3):
        param.grad = param.detach().cos()
        optimizer.step()
    return whole(param)


def _tensor_parallel(ranks: int) -> Facts:
    return {
        "uneven": uneven(ranks),
    } | {
        f"{name} {shard}": perceptron(ranks, name=name, tensor_parallel=2, shard=shard)
        for name in ("mars-adamw", "mars-shampoo", "mars-m")
        for shard in ((False,) if ranks == 2 else (True,))
    }


def _partial_sums(rank: int, ranks: int) -> Facts:
    """Take steps on a replicated matrix whose gradients are sums that are still to be made."""
    mesh = init_device_mesh("cpu", (ranks,))
    facts: Facts = {}
    for name, options in {"approx": {}, "exact": {"is_approx": False}}.items():
        start = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
        param = nn.Parameter(distribute_tensor(start, mesh, [Replicate()]))
        optimizer = MARS([param], lr=0.1, max_norm=0.5, **options)

        def closure() -> float:
            share = (rank + 1) / sum(range(1, ranks + 1))
            own = whole(param).cos() * share  # noqa: B023
            param.grad = DTensor.from_local(own, mesh, [Partial()])  # noqa: B023
            return 0.0

        for _ in range(3):
            optimizer.step(closure)
        facts[name] = whole(param)
    return facts


def _state_from_elsewhere(ranks: int) -> Facts:
    """Load state that lies otherwise than the parameter does."""
    mesh = init_device_mesh("cpu", (ranks,))
    start = torch.arange(8.0).view(2, 4)
    param = nn.Parameter(distribute_tensor(start, mesh, [Shard(0)]))
    optimizer = MARS([param], lr=0.1)
    param.grad = distribute_tensor(start.cos(), mesh, [Shard(0)])
    optimizer.step()
    packed = optimizer.state_dict()
    facts: Facts = {"expected": whole(packed["state"][0]["exp_avg"])}
    for name, other in {
        "plain": nn.Parameter(start.clone()),
        "replicated": nn.Parameter(distribute_tensor(start, mesh, [Replicate()])),
        "columns": nn.Parameter(distribute_tensor(start, mesh, [Shard(1)])),
    }.items():
        loaded = MARS([other], lr=0.1)
        loaded.load_state_dict(packed)
        facts[name] = whole(loaded.state[other]["exp_avg"])
    return facts


def _undivided(rank: int, ranks: int) -> list[str]:
    """Return the warnings of steps by a matrix rule that was told of no other rank."""
    trained = build("ddp", mars_type="mars-m")
    plain = MARS(trained.model.parameters(), mars_type="mars-m")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(2):
            _gradients(trained, step, rank, ranks)
            trained.optimizer.step()
        quiet = len(caught)
        for _ in range(2):
            plain.step()
    return [f"{quiet}", *(str(warning.message) for warning in caught)]


def _unlike(rank: int, ranks: int) -> Facts:
    """Return what ranks say that list matrices differently, or have other gradients."""
    first, second = (nn.Parameter(torch.full((4, 4), value)) for value in (1.0, 2.0))
    for param in (first, second):
        param.grad = torch.ones(4, 4)
    named = [("first", first), ("second", second)]
    options: dict[str, Any] = {"role": "matrix", "process_group": dist.group.WORLD}
    swapped = MARS([{"params": named if rank == 0 else named[::-1], **options}], mars_type="mars-m")
    mesh = init_device_mesh("cpu", (ranks,))
    shard = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
    shard.grad = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    missing = MARS([("shard", shard)])
    if rank == 1:
        shard.grad = None
    return {"order": _error(swapped.step), "gradient": _error(missing.step)}


def _stray(rank: int, ranks: int) -> str:
    """Leave gradients on one rank before an exact step, and return what is said here."""
    trained = build("fsdp2", is_approx=False)
    train(trained, range(2), rank=rank, ranks=ranks)
    weight = trained.model.gpt.wte.weight
    weight.grad = torch.zeros_like(weight)
    if rank == 0:
        weight.grad.to_local()[0, 0] = 1.0
    try:
        train(trained, range(2, 3), rank=rank, ranks=ranks)
    except RuntimeError as error:
        return str(error)
    return ""


def _placements(ranks: int) -> Facts:
    """Take steps on matrices that lie on a mesh in every way, and on what cannot be honoured."""
    facts: Facts = {}
    mesh = init_device_mesh("cpu", (ranks,))
    weights = torch.randn(5, 7, generator=torch.Generator().manual_seed(2))
    filters = torch.randn(5, 3, 2, 2, generator=torch.Generator().manual_seed(2))
    for name, tensor, placement in (
        ("rows", weights, Shard(0)),
        ("columns", weights, Shard(1)),
        ("replicas", weights, Replicate()),
        ("filters", filters, Shard(0)),
        ("channels", filters, Shard(1)),
    ):
        param = nn.Parameter(distribute_tensor(tensor, mesh, [placement]))
        optimizer = MARS([param], lr=0.1, mars_type="mars-m", max_norm=0.5)
        for _ in range(3):
            param.grad = distribute_tensor(whole(param).cos(), mesh, [placement])
            optimizer.step()
        facts[name] = whole(param)
    facts["errors"] = [
        _error(
            lambda: MARS([("odd", nn.Parameter(DTensor.from_local(weights, mesh, [Partial()])))])
        ),
        _error(lambda: MARS([param], differentiable=True)),
        _error(lambda: MARS([param], mars_type="mars-m", capturable=True)),
    ]
    return facts


MIXED_SHAPES = ((5, 7), (1, 9), (9, 2), (3, 3, 2, 2), (8, 8), (5, 7))


def mixed_steps(place: Callable[[Tensor, int], Tensor], **options: Any) -> list[Tensor]:
    """Take steps by a matrix rule on matrices that ``place`` lays out, by their number."""
    generator = torch.Generator().manual_seed(2)
    starts = [torch.randn(shape, generator=generator) for shape in MIXED_SHAPES]
    params = [nn.Parameter(place(start, i)) for i, start in enumerate(starts)]
    groups = [{"params": params, "role": "matrix"}]
    optimizer = MARS(groups, lr=0.1, mars_type="mars-m", max_norm=0.5, **options)
    for _ in range(3):
        for i, param in enumerate(params):
            param.grad = place(whole(param).cos(), i)
        optimizer.step()
    return [whole(param) for param in params]


def _mixed() -> Facts:
    """Take steps on matrices that lie in several ways on meshes of four ranks."""
    rows, columns, copies = Shard(0), Shard(1), Replicate()
    flat = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    deep = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("x", "y", "z"))
    every = [
        *((copies, rows), (rows, copies), (copies, copies)),
        *((rows, columns), (copies, columns), (columns, copies)),
    ]

    def steps(mesh: DeviceMesh, placements: list[tuple[Placement, ...]]) -> list[Tensor]:
        return mixed_steps(lambda t, i: distribute_tensor(t, mesh, placements[i]))

    facts: Facts = {
        "in every way": steps(flat, every),
        "copies along two axes": steps(deep, [(copies, copies, rows)] * len(every)),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "_BROADCAST_ELEMENTS", 8)  # less than any batch
        facts["a batch at a time"] = steps(flat, [(copies, rows)] * len(every))
    turned = DeviceMesh("cpu", [[0, 1], [3, 2]], mesh_dim_names=("p", "q"))
    facts["refusal"] = _error(lambda: steps(turned, [(copies, rows)] * len(every)))
    return facts


def _first_steps(rank: int, ranks: int) -> Facts:
    """Note the points that exact mode visits after a first step that did not count."""
    mesh = init_device_mesh("cpu", (ranks,))
    facts: Facts = {}
    for policy in ("raise", "skip"):
        param = nn.Parameter(distribute_tensor(torch.full((4, 2), 5.0), mesh, [Shard(0)]))
        optimizer = MARS([param], lr=0.1, is_approx=False, nonfinite=policy)
        seen: list[float] = []
        value = float("nan") if rank else 1.0

        def closure() -> float:
            seen.append(float(param.to_local().flatten()[0]))  # noqa: B023
            # A sum that is still to be made, as tensor parallelism leaves it.
            own = torch.full((4, 2), value) / ranks  # noqa: B023
            param.grad = DTensor.from_local(own, mesh, [Partial()])  # noqa: B023
            return 0.0

        message = _error(lambda: optimizer.step(closure))  # noqa: B023
        value = 1.0
        optimizer.zero_grad()
        optimizer.step(closure)
        facts[policy] = {"message": message, "seen": seen, "param": whole(param)}
    return facts


def _error(act: Any) -> str:
    try:
        act()
    except (ValueError, RuntimeError) as error:
        return str(error)
    return ""


def _facts(rank: int, ranks: int, _: Path) -> Facts:
    facts = {"traffic": _traffic(rank, ranks), "tensor parallel": _tensor_parallel(ranks)}
    if ranks == 4:
        return {**facts, "states": _states(rank, ranks), "mixed": _mixed()}
    return {
        **facts,
        "wrappers": _wrappers(rank, ranks),
        "engines": _engines(rank, ranks),
        "nonfinite": _nonfinite(rank, ranks),
        "measures": _measures(rank, ranks),
        "low precision": _low_precision(rank, ranks),
        "placements": _placements(ranks),
        "partial sums": _partial_sums(rank, ranks),
        "first steps": _first_steps(rank, ranks),
        "elsewhere": _state_from_elsewhere(ranks),
        "undivided": _undivided(rank, ranks),
        "stray": _stray(rank, ranks),
        "unlike": _unlike(rank, ranks),
    }


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> list[Facts]:
    return run(_facts, tmp_path_factory.mktemp("two"), ranks=2)


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> list[Facts]:
    return run(_facts, tmp_path_factory.mktemp("four"), ranks=4)


ELEMENTWISE = ("mars-adamw", "mars-lion")
MATRICES = 2 * 4 + 2  # four of each block, and the narrow path; nobody uses the other one


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_elementwise_step_takes_one_collective_on_shards_and_none_on_replicas(name, two, four):
    for facts in (*two, *four):
        counts = {key: f["collectives"] for key, f in facts["traffic"].items() if name in key}
        on_replicas = {counts.pop(key) for key in list(counts) if key.startswith("ddp")}
        assert on_replicas == {0}
        assert set(counts.values()) == {1}


@pytest.mark.parametrize("name", ["mars-shampoo", "mars-m"])
@pytest.mark.parametrize("mode", ["ddp", "fsdp2", "hsdp"])
def test_every_matrix_is_orthogonalised_once_by_one_rank(name, mode, two, four):
    for world in (two, four):
        if mode == "hsdp" and len(world) == 2:
            continue
        own = [facts["traffic"][f"{mode} {name}"]["shapes"] for facts in world]
        assert sum(len(shapes) for shapes in own) == MATRICES
        flops = [facts["traffic"][f"{mode} {name}"]["flops"] for facts in world]
        if len(world) == 4:
            assert max(flops) <= 0.4 * sum(flops)
        assert all(shapes for shapes in own)


@pytest.mark.parametrize("name", ["mars-shampoo", "mars-m"])
def test_matrices_travel_once_and_directions_once_to_each_copy(name, two, four):
    for mode, world in (
        ("ddp", two),
        ("ddp", four),
        ("fsdp2", two),
        ("fsdp2", four),
        ("hsdp", four),
    ):
        facts = [each["traffic"][f"{mode} {name}"] for each in world]
        elements = sum(prod(shape) for each in facts for shape in each["shapes"])
        all_to_all = sum(each["sent"].get("all_to_all_single", 0) for each in facts)
        broadcast = sum(each["sent"].get("broadcast", 0) for each in facts)
        # Every momentum goes to its owner once and every direction comes from it once; copies of
        # a part are told by each other, and every rank takes part in that with its parts.
        assert all_to_all == (0 if mode == "ddp" else 2 * elements)
        copies = {"ddp": len(world), "fsdp2": 0, "hsdp": 2}[mode]
        assert broadcast == copies * elements


@pytest.mark.parametrize("name", ["views", "static", "accumulated"])
def test_what_ddp_does_with_gradients_does_not_matter(name, two):
    for facts in two:
        for key, param in facts["wrappers"]["plain"].items():
            torch.testing.assert_close(
                facts["wrappers"][name][key], param, rtol=2e-5, atol=1e-7, msg=key
            )


@pytest.mark.parametrize("name", ["mars-adamw", "mars-lion", "mars-m"])
def test_engines_agree_on_shards(name, two):
    for facts in two:
        large = "eager" if name == "mars-m" else "compiled"
        assert facts["engines"][f"engines of {name} True"] == [large, "eager"]
        for key, param in facts["engines"][f"{name} False"].items():
            torch.testing.assert_close(
                facts["engines"][f"{name} True"][key], param, rtol=1e-5, atol=1e-7, msg=key
            )


def test_a_nonfinite_entry_on_one_rank_is_skipped_by_all(two):
    for facts in two:
        assert facts["nonfinite"]["skip"] == {"message": "", "equal": True, "skipped": 1}


def test_a_nonfinite_entry_on_one_rank_raises_on_all_and_is_named_there(two):
    messages = [facts["nonfinite"]["raise"]["message"] for facts in two]
    assert messages[0].startswith("non-finite gradient on another rank")
    assert "'gpt.wte.weight'" in messages[1]
    assert all(facts["nonfinite"]["raise"]["equal"] for facts in two)


def test_measures_of_shards_are_those_of_whole_tensors(two):
    for facts in two:
        assert facts["measures"]["fsdp2"] == pytest.approx(facts["measures"]["ddp"], rel=1e-5)
        assert 0 < facts["measures"]["ddp"]["clip_rate"] < 1


@pytest.mark.parametrize("name", ["mars-adamw", "mars-m"])
def test_mixed_precision_keeps_float32_parameters_and_state(name, two):
    for facts in two:
        found = facts["low precision"][name]
        assert found["dtypes"] == ["torch.float32"] * 2
        ours, full = found["losses"]
        assert ours == pytest.approx(full, rel=2e-2)
        assert ours != full


def test_every_rank_keeps_the_same_keys_and_whole_shapes(four):
    first, *others = [facts["states"]["keys"] for facts in four]
    assert all(other == first for other in others)
    assert {key for key in first if key.endswith(".exp_avg")}


def test_described_bytes_are_those_this_rank_keeps(four):
    for facts in four:
        described, held = facts["states"]["bytes"]
        assert described == held
    assert len({facts["states"]["bytes"][1] for facts in four}) > 1


def test_state_dicts_of_shards_and_of_whole_tensors_load(four):
    for facts in four:
        assert facts["states"]["round trip"]
        assert facts["states"]["from whole tensors"]


def test_a_process_group_is_of_the_process_and_not_of_the_checkpoint(four):
    for facts in four:
        replicas = facts["states"]["replicas"]
        assert all(replicas["saved"])
        assert all(replicas["kept"])
        assert replicas["copied"] == len(replicas["kept"])
        assert replicas["names"] == ["down", "up"]  # without the wrapper's prefix


@pytest.mark.parametrize("name", ["mars-adamw", "mars-shampoo", "mars-m"])
def test_tensor_parallel_matrices_take_the_steps_of_whole_ones(name, two, four):
    alone = perceptron(1, name=name, tensor_parallel=0, shard=False)
    for facts, key in [*((f, f"{name} False") for f in two), *((f, f"{name} True") for f in four)]:
        torch.testing.assert_close(facts["tensor parallel"][key], alone, rtol=2e-5, atol=1e-6)


def test_rows_need_not_divide(two, four):
    for facts in (*two, *four):
        torch.testing.assert_close(
            facts["tensor parallel"]["uneven"], uneven(1), rtol=2e-5, atol=1e-6
        )


@pytest.mark.parametrize("name", ["rows", "columns", "replicas", "filters", "channels"])
def test_a_matrix_may_lie_on_a_mesh_in_any_way(name, two):
    shape = (5, 7) if name in ("rows", "columns", "replicas") else (5, 3, 2, 2)
    param = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(2)))
    optimizer = MARS([param], lr=0.1, mars_type="mars-m", max_norm=0.5)
    for _ in range(3):
        param.grad = param.detach().cos()
        optimizer.step()
    for facts in two:
        torch.testing.assert_close(facts["placements"][name], param.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["in every way", "copies along two axes", "a batch at a time"])
def test_matrices_may_lie_on_a_mesh_in_several_ways_at_once(name, four):
    alone = mixed_steps(lambda tensor, _: tensor)
    for facts in four:
        for ours, theirs in zip(facts["mixed"][name], alone, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_mesh_whose_ranks_do_not_ascend_is_refused(four):
    for facts in four:
        assert (
            "lies on a mesh whose ranks do not ascend: [[0, 1], [3, 2]]"
            in facts["mixed"]["refusal"]
        )


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_after_a_first_step_that_did_not_count_exact_mode_is_where_it_was(policy, two):
    for rank, facts in enumerate(two):
        found = facts["first steps"][policy]
        assert set(found["seen"]) == {5.0}
        assert torch.equal(found["param"], two[0]["first steps"][policy]["param"])
        assert (found["param"] < 5).all()
        who = "non-finite gradient in parameter 0 of group 0"
        assert found["message"].startswith(who) if policy == "raise" else not found["message"], rank


@pytest.mark.parametrize("name", ["approx", "exact"])
def test_gradients_that_are_pending_sums_count_whole(name, two):
    param = nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(2)))
    optimizer = MARS([param], lr=0.1, max_norm=0.5, is_approx=name == "approx")

    def closure() -> float:
        param.grad = param.detach().cos()
        return 0.0

    for _ in range(3):
        optimizer.step(closure)
    for facts in two:
        torch.testing.assert_close(facts["partial sums"][name], param.detach())


@pytest.mark.parametrize("name", ["plain", "replicated", "columns"])
def test_state_loads_from_any_placement(name, two):
    for facts in two:
        assert torch.equal(facts["elsewhere"][name], facts["elsewhere"]["expected"])


def test_ranks_that_all_orthogonalise_everything_are_told_once(two):
    for facts in two:
        quiet, warning = facts["undivided"]
        assert quiet == "0"
        assert "mars.param_groups" in warning


def test_ranks_that_are_about_to_do_different_things_all_say_so(two):
    for rank, facts in enumerate(two):
        assert "ranks differ" in facts["unlike"]["order"]
        assert ("'first'", "'second'")[rank] in facts["unlike"]["order"]
        assert "'shard'" in facts["unlike"]["gradient"]
        assert ("with a gradient", "with no gradient")[rank] in facts["unlike"]["gradient"]


def test_stray_gradients_on_one_rank_are_refused_by_all(two):
    for facts in two:
        assert "gradients from outside the closure" in facts["stray"]


def test_what_cannot_be_honoured_is_refused_with_the_way_out(two):
    for facts in two:
        partial, differentiable, capturable = facts["placements"]["errors"]
        assert "parameter 'odd' of shape (5, 7)" in partial
        assert "redistribute" in partial
        assert "plain parameters" in differentiable
        assert "leave it False" in capturable


def test_owners_have_about_equal_loads():
    costs = [8.0, 7, 6, 5, 4, 3, 2, 1]
    chosen = exchange.owners(costs, ranks=3)
    loads = [sum(c for c, o in zip(costs, chosen, strict=True) if o == rank) for rank in range(3)]
    assert sorted(loads) == [11, 12, 13]


def test_a_process_group_that_is_none_is_refused():
    param = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(TypeError, match="process_group must be"):
        MARS([{"params": [param], "process_group": "world"}])
