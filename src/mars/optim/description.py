"""The routing table: what an optimizer does with each parameter, to read and to print."""

from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields

from torch import Tensor

from mars.optim.options import Group
from mars.optim.routing import engine_of, learning_rate, route, weight_decay
from mars.optim.state import state_bytes, visit_bytes


@dataclass(frozen=True, slots=True)
class Row:
    """One parameter's line of the routing table."""

    tensor: str
    shape: tuple[int, ...]
    role: str
    rule: str
    engine: str
    lr: float
    decay: float
    state_bytes: int


@dataclass(frozen=True, slots=True)
class Description:
    """The routing table of an optimizer; ``str()`` of it is a table, iteration gives its rows."""

    rows: tuple[Row, ...]
    visit_bytes: int = 0
    """What an exact step holds beside the state: the gradients at the previous point."""

    @property
    def state_bytes(self) -> int:
        """The bytes of all state, step counts left out."""
        return sum(row.state_bytes for row in self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        head = tuple(f.name.replace("_", " ") for f in fields(Row))
        body = [tuple(_cell(value) for value in astuple(row)) for row in self.rows]
        count = len(self.rows)
        total = f"{count} tensor{'s' if count != 1 else ''}, {self.state_bytes:,} bytes of state"
        if self.visit_bytes:
            total += f", {self.visit_bytes:,} more during a step (gradients at the previous point)"
        return "\n".join([*_aligned([head, *body]), total])


def describe(groups: list[Group]) -> Description:
    """Return the routing table of parameter groups as they stand now."""
    return Description(
        tuple(
            _row(groups, index, position, param)
            for index, group in enumerate(groups)
            for position, param in enumerate(group["params"])
        ),
        sum(visit_bytes(param, group) for group in groups for param in group["params"]),
    )


def _row(groups: list[Group], index: int, position: int, param: Tensor) -> Row:
    group = groups[index]
    way = route(param, group)
    return Row(
        tensor=group["param_names"][position] if "param_names" in group else f"{index}.{position}",
        shape=tuple(param.shape),
        role=way.role,
        rule=way.label,
        engine=engine_of(param, group, way),
        lr=float(learning_rate(way, group)),
        decay=float(weight_decay(way, group)),
        state_bytes=state_bytes(param, group),
    )


def _cell(value: object) -> str:
    if isinstance(value, tuple):
        return "x".join(str(side) for side in value) or "scalar"
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _aligned(lines: list[tuple[str, ...]]) -> list[str]:
    """Pad columns to equal width: text to the left, numbers (lr, decay, bytes) to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    first_number = [f.name for f in fields(Row)].index("lr")
    return [
        "  ".join(
            cell.ljust(width) if i < first_number else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
