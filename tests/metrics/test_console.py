import io
import math
import re
import sys
import threading
from itertools import pairwise

import pytest
from rich.console import Console

from mars.metrics.console import LiveDisplay, PlainDisplay, make_display
from mars.metrics.display import Header, Summary
from mars.metrics.record import Record

HEADER = Header(
    name="tiny",
    description="A small GPT-2 on the standard library",
    optimizer="mars-adamw, lr 3e-3",
    parameters=824_832,
    per_step=16_384,
    total_steps=500,
    device="cpu, 2 threads, float32",
    data="data/stdlib",
    output="runs/tiny",
    checkpoints="runs/tiny/checkpoints",
    resumed_from=100,
)
SUMMARY = Summary(
    steps=500,
    count=8_192_000,
    seconds=151.0,
    per_second=54_251.0,
    validation_loss=1.4821,
    validation_details=["perplexity 4.4", "2.14 bits per byte"],
    files={"metrics": "runs/tiny/metrics.jsonl", "settings": "runs/tiny/run.toml"},
    commands=["mars sample runs/tiny --prompt 'def '", "mars report runs/tiny --out report.html"],
)
MEASURES = {
    "grad_norm": 0.81,
    "correction_ratio": 0.112,
    "gradient_cosine": 0.43,
    "clip_rate": 0.031,
    "tokens_per_second": 12_345.6,
    "mfu": 0.38,
}


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def __init__(self, encoding="utf-8"):
        super().__init__()
        self._encoding = encoding

    encoding = property(lambda self: self._encoding)

    def isatty(self):
        return True

    def write(self, text):
        text.encode(self._encoding)  # raises as a real file does
        return super().write(text)


class Clock:
    """A clock that goes on when told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def record(step, *, split="train", loss=2.4314, **extra):
    return Record(
        step=step,
        split=split,
        loss=loss,
        lr=0.0051,
        seconds=step * 0.25,
        count=step * 16_384,
        extra=extra,
    )


def terminal(width=80, encoding="utf-8", height=30):
    return Console(
        file=Terminal(encoding),
        width=width,
        height=height,
        color_system="truecolor",
        legacy_windows=False,
        _environ={"TERM": "xterm"},
    )


def log(encoding=None, **options):
    file = io.StringIO() if encoding is None else Terminal(encoding)
    return Console(file=file, width=80, _environ={}, **options)


def frame(console):
    """Return the lines of the last drawing, without colours."""
    last = re.split(r"\x1b\[2K\r?|\x1b\[1A|\x1b\[\?25l", console.file.getvalue())[-1]
    return re.sub(r"\x1b\[[0-9;?]*[a-z]", "", last).split("\n")


def run(display, clock, *, steps=range(110, 510, 10), loss=2.4314):
    display.start(HEADER)
    for step in steps:
        clock.now += 2.5
        display.train(record(step, loss=loss, **MEASURES))
        if step % 200 == 0:
            display.validation(record(step, split="val", loss=2.39))
    display.finish(SUMMARY)
    display.close()


def test_a_log_reads_so():
    console, clock = log(), Clock()
    run(PlainDisplay(console, clock=clock), clock, steps=[110, 120, 130, 200, 210, 500])
    assert console.file.getvalue() == (
        "tiny  A small GPT-2 on the standard library\n"
        "  optimizer   mars-adamw, lr 3e-3\n"
        "  parameters  824.8k\n"
        "  steps       500 of 16.4k tokens, 8.2M in all\n"
        "  device      cpu, 2 threads, float32\n"
        "  data        data/stdlib\n"
        "  output      runs/tiny\n"
        "  resumed     from step 100\n"
        "step 110/500  loss 2.431  lr 5.1e-03  12.3k tok/s\n"
        "step 130/500  loss 2.431  lr 5.1e-03  12.3k tok/s  eta 1:32\n"
        "step 200/500  val 2.390  best 2.390 at 200  0:50\n"
        "step 210/500  loss 2.431  val 2.390  lr 5.1e-03  12.3k tok/s  eta 1:12\n"
        "step 500/500  loss 2.431  val 2.390  lr 5.1e-03  12.3k tok/s  eta 0:00\n"
        "Finished: 500 steps, 8.2M tokens in 2:31, 54.3k a second\n"
        "Validation loss 1.482 (perplexity 4.4, 2.14 bits per byte)\n"
        "  metrics   runs/tiny/metrics.jsonl\n"
        "  settings  runs/tiny/run.toml\n"
        "Next:\n"
        "  mars sample runs/tiny --prompt 'def '\n"
        "  mars report runs/tiny --out report.html\n"
    )


def test_training_lines_keep_their_distance_and_validations_do_not():
    console, clock = log(), Clock()
    display = PlainDisplay(console, clock=clock)
    display.start(HEADER)
    for step in range(1, 101):
        display.train(record(step))
        display.validation(record(step, split="val"))
        clock.now += 1.0
    lines = console.file.getvalue().splitlines()
    assert [int(re.match(r"step (\d+)", x)[1]) for x in lines if " loss " in x] == [
        *range(1, 101, 5)
    ]
    assert sum("best" in line for line in lines) == 100


def test_a_log_has_no_control_characters_and_unbroken_commands():
    long = "mars sample " + "x" * 200
    console, clock = log(), Clock()
    display = PlainDisplay(console, clock=clock)
    run(display, clock)
    display.message("saved \x1b[31mstep\a 5\x00")
    display.finish(Summary(steps=1, count=1, seconds=1.0, per_second=None, commands=[long]))
    text = console.file.getvalue()
    assert [char for char in text if not char.isprintable() and char != "\n"] == []
    assert f"  {long}\n" in text


@pytest.mark.parametrize("make", [PlainDisplay, LiveDisplay])
def test_square_brackets_are_text(make):
    console = log()
    make(console).message("[bold] a[0] [/nothing]")
    assert console.file.getvalue() == "[bold] a[0] [/nothing]\n"


def test_an_image_run_counts_samples_and_shows_its_accuracy():
    console = log()
    display = PlainDisplay(console)
    display.start(Header(name="cifar", total_steps=9, per_step=128, unit="samples"))
    fields = {"lr": 0.1, "seconds": 2.0, "count": 256, "unit": "samples"}
    display.train(
        Record(step=2, split="train", loss=1.5, extra={"samples_per_second": 640.0}, **fields)
    )
    display.validation(Record(step=2, split="val", loss=1.25, extra={"accuracy": 0.9123}, **fields))
    assert console.file.getvalue().splitlines()[1:] == [
        "  steps  9 of 128 samples, 1.2k in all",
        "step 2/9  loss 1.500  lr 1.0e-01  640 samples/s",
        "step 2/9  val 1.250  accuracy 91.2%  best 1.250 at 2  0:02",
    ]


def shown(width):
    """Return the last frame of a run in which everything is measured."""
    console, clock = terminal(width), Clock()
    display = LiveDisplay(console, clock=clock)
    display.start(HEADER)
    for step in range(110, 310, 10):
        clock.now += 1
        display.train(record(step, loss=400 / step, **MEASURES, skipped_steps=2))
    display.validation(record(300, split="val", loss=2.39))
    lines = frame(console)
    display.close()
    return lines


def test_the_live_frame_at_eighty_columns_reads_so():
    assert [line.rstrip() for line in shown(80)] == [
        "━" * 34 + "─" * 23 + " 300/500  1:15 eta 0:50",
        "loss       2.016 last 1.333  val         2.390        best    2.390 at 300",
        "lr         5.1e-03           speed       12.3k tok/s  mfu     38.0%",
        "grad norm  0.810             correction  0.112        cosine  0.430",
        "clipped    3.1%              skipped     2",
        "curve  ███▇▆▆▅▅▄▄▃▃▃▂▂▂▂▁▁▁",
        "checkpoints  runs/tiny/checkpoints",
    ]


@pytest.mark.parametrize(("width", "rows"), [(40, 11), (80, 4), (120, 4)])
def test_every_measure_is_shown_at_every_width(width, rows):
    lines = shown(width)
    text = "\n".join(lines)
    for label, value in {
        "val": "2.390",
        "best": "2.390 at 300",
        "lr": "5.1e-03",
        "speed": "12.3k tok/s",
        "mfu": "38.0%",
        "grad norm": "0.810",
        "correction": "0.112",
        "cosine": "0.430",
        "clipped": "3.1%",
        "skipped": "2",
        "checkpoints": "runs/tiny/checkpoints",
    }.items():
        assert re.search(rf"{label} +{re.escape(value)}", text), label
    assert lines[0].endswith(" 300/500  1:15 eta 0:50")
    assert len(lines[0]) == width
    assert max(map(len, lines)) <= width
    assert len(lines) == 1 + rows + 2


def test_the_bar_reads_without_colours():
    console = Console(file=Terminal(), width=43, _environ={"TERM": "xterm", "NO_COLOR": "1"})
    display = LiveDisplay(console)
    display.start(Header(name="plain", total_steps=4, per_step=8))
    bars = []
    for step in (1, 4):
        display.validation(record(step, split="val"))
        bars.append(frame(console)[0])
    display.close()
    assert bars == ["━" * 6 + "─" * 21 + " 1/4  0:00 eta -", "━" * 24 + " 4/4  0:01 eta 0:00"]


def test_what_was_not_measured_takes_no_room():
    console = terminal()
    display = LiveDisplay(console)
    display.start(Header(name="plain", total_steps=10, per_step=8))
    display.validation(record(0, split="val", loss=5.0))
    text = "\n".join(frame(console))
    display.close()
    assert "skipped" not in text
    assert "correction" not in text
    assert "checkpoints" not in text
    assert re.search(r"loss +- last - +val +5.000 +best +5.000 at 0", text)


@pytest.mark.parametrize("make", [PlainDisplay, LiveDisplay])
@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e300, 0.0])
def test_a_loss_of_any_value_is_shown(make, loss):
    console, clock = terminal(), Clock()
    run(make(console, clock=clock), clock, loss=loss)
    word = {1e300: "1.0e+300", 0.0: "0.000"}.get(loss, str(loss))
    assert re.search(rf"(loss|last) {re.escape(word)} ", console.file.getvalue())


@pytest.mark.parametrize("make", [PlainDisplay, LiveDisplay])
@pytest.mark.parametrize("width", [1, 2, 5, 10, 25])
def test_a_narrow_terminal_still_gets_the_summary(make, width):
    console, clock = terminal(width, height=3), Clock()
    run(make(console, clock=clock), clock)
    assert "runs/tiny/metrics.jsonl" in console.file.getvalue()


def test_nothing_is_drawn_more_than_four_times_a_second(monkeypatch):
    clock = Clock()
    display = LiveDisplay(terminal(), clock=clock)
    drawn = []
    monkeypatch.setattr(display._live, "update", lambda *_, **__: drawn.append(clock.now))
    display.start(HEADER)
    for step in range(1, 1001):
        clock.now += 1 / 64
        display.train(record(step))
    display.close()
    assert len(drawn) == 1 + 1000 // 16
    assert min(b - a for a, b in pairwise(drawn)) >= 0.25


def test_the_live_display_has_no_thread_and_gives_the_terminal_back():
    threads, stdout = threading.active_count(), sys.stdout
    console = terminal()
    display = LiveDisplay(console)
    display.start(HEADER)
    display.train(record(110))
    assert threading.active_count() == threads
    display.close()
    display.close()
    assert sys.stdout is stdout
    assert console.file.getvalue().count("\x1b[?25l") == 1
    assert console.file.getvalue().count("\x1b[?25h") == 1


def test_messages_stay_above_the_bar():
    console = terminal()
    display = LiveDisplay(console)
    display.start(HEADER)
    display.train(record(110))
    display.message("checkpoint at step 110")
    assert "checkpoint at step 110" in console.file.getvalue()
    lines = frame(console)
    display.close()
    assert lines[0] == "checkpoint at step 110"
    assert lines[1].lstrip("━─").startswith(" 1")


@pytest.mark.parametrize(
    ("console", "kind"),
    [
        (terminal(), LiveDisplay),
        (terminal(encoding="ascii"), PlainDisplay),
        (log(), PlainDisplay),
        # FORCE_COLOR in a CI job: colours in the log, no redrawing.
        (Console(file=io.StringIO(), _environ={"FORCE_COLOR": "1"}), PlainDisplay),
        (Console(file=Terminal(), _environ={"TERM": "dumb"}), PlainDisplay),
        (Console(file=Terminal(), _environ={"TTY_INTERACTIVE": "0"}), PlainDisplay),
    ],
    ids=["terminal", "ascii", "file", "forced-colour", "dumb", "not-interactive"],
)
def test_the_display_suits_the_console(console, kind):
    assert type(make_display(console)) is kind


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_text_that_the_encoding_lacks_is_replaced(encoding):
    console = log(encoding)
    display = PlainDisplay(console)
    display.start(Header(name="läufe/\udcff 文", total_steps=1, per_step=1))
    expected = {"ascii": "l?ufe/  ?", "cp1252": "läufe/  ?", "utf-8": "läufe/  文"}[encoding]
    assert re.sub(r"\x1b\[\d+m", "", console.file.getvalue()).splitlines()[0] == expected


def test_a_quiet_console_shows_nothing():
    console, clock = Console(file=Terminal(), quiet=True, _environ={"TERM": "xterm"}), Clock()
    for display in (PlainDisplay(console, clock=clock), LiveDisplay(console, clock=clock)):
        run(display, clock)
    assert console.file.getvalue() == ""
