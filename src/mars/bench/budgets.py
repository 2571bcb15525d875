"""The budgets of the design, and whether a run meets them."""

import torch
from torch import nn

from mars import MARS
from mars.bench.measure import state_bytes
from mars.bench.options import MAIN_SIZE
from mars.bench.results import Row, SizeReport, Verdict
from mars.bench.subjects import BASELINE, MATRIX_TYPES, MUON_NAME

# Subject, limit and aim of its step time over that of torch AdamW fused.
_STEP_TIMES: tuple[tuple[str, float, float | None], ...] = (
    ("mars-adamw fused", 2.0, 1.7),
    ("mars-adamw lean-fused", 1.25, 1.1),
    ("mars-lion fused", 1.7, None),
    ("mars-adamw eager", 3.0, None),
)
_OVER_MUON = 0.5
_ENGINES_OVER_MUON = ("eager", "fused")
# Form, the engines that show it, and the bytes of state a parameter.
_STATE = (("", ("eager", "fused"), 12), (" lean", ("lean-eager", "lean-fused"), 8))
_STATE_BFLOAT16 = 10
_IMPORT = 1.1
# What scratch memory may take beside one largest tensor: models of small tensors need some too.
_ALLOWED_EXTRA_BYTES = 64 * 2**20

ELSEWHERE = (
    "Not measured here: exact over approx (benchmarks/exact_cost.py) and training throughput."
)


def judged_size(sizes: tuple[SizeReport, ...]) -> SizeReport:
    """Return the size the budgets are held against: the one they are set for, else the first."""
    return next((size for size in sizes if size.name == MAIN_SIZE), sizes[0])


def verdicts(size: SizeReport, imports: tuple[float, float] | None) -> tuple[Verdict, ...]:
    """Compare a size's figures, and the seconds of importing mars and torch, with the budgets."""
    found = [
        _at_most(f"step: {name} / {BASELINE}", row.ratio, limit=limit, aim=aim)
        for name, limit, aim in _STEP_TIMES
        if (row := size.row(name))
    ]
    found += [*_over_muon(size), *_extra_memory(size), *_state(size)]
    if imports is not None:
        found.append(_at_most("import mars / import torch", imports[0] / imports[1], limit=_IMPORT))
    return tuple(found)


def _at_most(
    budget: str, measured: float, *, limit: float, aim: float | None = None, unit: str = "x"
) -> Verdict:
    return Verdict(budget, measured, limit, aim, unit, met=measured <= limit)


def _over_muon(size: SizeReport) -> list[Verdict]:
    muon = size.row(MUON_NAME)
    if muon is None:
        return []
    # Ratios to the baseline of each one's own group: the two may have been measured apart.
    return [
        _at_most(f"step: {name} / {MUON_NAME}", row.ratio / muon.ratio, limit=_OVER_MUON)
        for mars_type in MATRIX_TYPES
        for engine in _ENGINES_OVER_MUON
        if (row := size.row(name := f"{mars_type} {engine}"))
    ]


def _extra_memory(size: SizeReport) -> list[Verdict]:
    """Return the verdict on the MARS step that holds most, over what it may hold."""
    ours = [row for row in size.rows if row.subject.startswith("mars-")]
    if not ours:
        return []
    worst: Row = max(ours, key=lambda row: row.peak_extra_bytes)
    return [
        _at_most(
            f"extra memory / (largest tensor + 64 MB), worst: {worst.subject}",
            worst.peak_extra_bytes / (size.largest_tensor_bytes + _ALLOWED_EXTRA_BYTES),
            limit=1.0,
        )
    ]


def _state(size: SizeReport) -> list[Verdict]:
    found = []
    for form, engines, limit in _STATE:
        rows = filter(None, (size.row(f"mars-adamw {engine}") for engine in engines))
        if row := next(rows, None):
            measured = row.state_bytes_per_parameter
            name = f"state a parameter: mars-adamw{form}"
            found.append(_at_most(name, measured, limit=limit, unit="B"))
    if found:
        name = "state a parameter: mars-adamw, bfloat16 last_grad"
        found.append(_at_most(name, bfloat16_state_bytes(), limit=_STATE_BFLOAT16, unit="B"))
    return found


def bfloat16_state_bytes() -> float:
    """Return the bytes of state a parameter with the previous gradient kept in bfloat16.

    They are the same on any matrix, so that a small one will do.
    """
    param = nn.Parameter(torch.ones(16, 16))
    param.grad = torch.ones_like(param)
    optimizer = MARS([param], last_grad_dtype=torch.bfloat16)
    optimizer.step()
    return state_bytes([optimizer]) / param.numel()
