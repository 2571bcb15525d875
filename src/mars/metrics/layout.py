"""How the progress of a run reads: as lines of a log, as the frame of a terminal."""

from rich.text import Text

from mars.metrics.progress import Progress
from mars.metrics.quantities import (
    count_text,
    duration_text,
    loss_text,
    percent_text,
    rate_text,
    sparkline,
)
from mars.metrics.record import Record

_CELL_WIDTH = 26  # of a label and its value in the table; as many columns as fit, at most three
_CURVE_WIDTH = 60


def train_line(progress: Progress, record: Record) -> str:
    """Return a log's line about a training record."""
    validated, left = progress.last_validation, progress.seconds_left()
    parts = [
        f"step {record.step}/{progress.total_steps}",
        f"loss {loss_text(record.loss)}",
        "" if validated is None else f"val {loss_text(validated.loss)}",
        f"lr {rate_text(record.lr)}",
        _speed(progress),
        f"skipped {record.extra['skipped_steps']}" if record.extra.get("skipped_steps") else "",
        "" if left is None else f"eta {duration_text(left)}",
    ]
    return "  ".join(part for part in parts if part)


def validation_line(progress: Progress, record: Record) -> str:
    """Return a log's line about a validation record."""
    parts = [
        f"step {record.step}/{progress.total_steps}",
        f"val {loss_text(record.loss)}",
        _accuracy(record),
        _best(progress),
        duration_text(record.seconds),
    ]
    return "  ".join(part for part in parts if part)


def frame(progress: Progress, checkpoints: str, *, width: int) -> Text:
    """Return what a person sees of a running training.

    One text: rich lays out tables in more than twice the time.
    """
    lines = [_bar(progress, width=width), *_columns(_cells(progress), width=width)]
    if losses := progress.curve.values(min(_CURVE_WIDTH, width - len("curve  "))):
        lines.append(Text.assemble(("curve  ", "dim"), (sparkline(losses), "cyan")))
    if checkpoints:
        lines.append(Text.assemble(("checkpoints  ", "dim"), checkpoints))
    return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)


def _bar(progress: Progress, *, width: int) -> Text:
    step, total = progress.step, progress.total_steps
    passed, left = duration_text(progress.seconds()), duration_text(progress.seconds_left())
    times = f"  {passed} eta {left}"
    room = max(0, width - len(f"{step}/{total}{times}") - 1)
    done = min(room, room * step // max(total, 1))
    return Text.assemble(
        ("━" * done, "green"),
        ("─" * (room - done), "bright_black"),
        (f" {step}/{total}", "bold"),
        (times, "dim"),
    )


def _cells(progress: Progress) -> dict[str, str]:
    """Return what is known of the run, label and value, the most wanted first."""
    train, validated = progress.last_train, progress.last_validation
    extra = {} if train is None else train.extra
    smoothed, last = progress.smoothed_loss, None if train is None else train.loss
    cells = {
        "loss": f"{loss_text(smoothed)} last {loss_text(last)}",
        "val": loss_text(None if validated is None else validated.loss),
        "best": _best(progress).removeprefix("best "),
        "accuracy": "" if validated is None else _accuracy(validated).removeprefix("accuracy "),
        "lr": rate_text(None if train is None else train.lr),
        "speed": _speed(progress),
    }
    for label, measure, text in (
        ("mfu", "mfu", percent_text),
        ("grad norm", "grad_norm", loss_text),
        ("correction", "correction_ratio", loss_text),
        ("cosine", "gradient_cosine", loss_text),
        ("clipped", "clip_rate", percent_text),
    ):
        cells[label] = text(extra[measure]) if measure in extra else ""
    cells["skipped"] = count_text(extra["skipped_steps"]) if extra.get("skipped_steps") else ""
    return {label: value for label, value in cells.items() if value}


def _columns(cells: dict[str, str], *, width: int) -> list[Text]:
    """Return the cells in rows of as many as fit, labels and values below each other."""
    count = max(1, min(3, width // _CELL_WIDTH))
    items = list(cells.items())
    widths = [
        [max(len(item[part]) for item in items[column::count]) for part in (0, 1)]
        for column in range(min(count, len(items)))
    ]
    rows = []
    for start in range(0, len(items), count):
        row = Text()
        for (label, value), (label_width, value_width) in zip(
            items[start : start + count], widths, strict=False
        ):
            row.append(f"{label:{label_width}}  ", style="dim").append(f"{value:{value_width}}  ")
        rows.append(row)
    return rows


def _best(progress: Progress) -> str:
    best = progress.best_validation
    return "" if best is None else f"best {loss_text(best.loss)} at {best.step}"


def _accuracy(record: Record) -> str:
    accuracy = record.extra.get("accuracy")
    return "" if accuracy is None else f"accuracy {percent_text(accuracy)}"


def _speed(progress: Progress) -> str:
    speed, last = progress.per_second(), progress.last_train
    if speed is None or last is None:
        return ""
    return f"{count_text(speed)} {'tok/s' if last.unit == 'tokens' else 'samples/s'}"
