"""How figures of a plan are written."""

import io

import pytest
from rich.console import Console

from mars.commands.plan_display import Shown, _gb, _ms, show
from mars.planning.advice import advise
from mars.planning.estimate import estimate, inventory_of
from mars.planning.gpus import gpu_of
from mars.planning.request import make_request


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0.00"),
        (5e6, "0.01"),
        (1.234e9, "1.23"),
        (9.994e9, "9.99"),
        (9.996e9, "10.0"),
        (80e9, "80.0"),
        (99.94e9, "99.9"),
        (99.96e9, "100"),
        (1.234e12, "1234"),
    ],
)
def test_gigabytes_have_about_three_digits(count, text):
    assert _gb(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.00"), (1.234e-4, "0.12"), (1.26e-3, "1.3"), (0.0994, "99.4"), (0.0996, "100")],
)
def test_milliseconds_have_about_three_digits(seconds, text):
    assert _ms(seconds) == text


def shown(model: str, *, width: int, **keywords) -> str:
    request = make_request(model, gpu=gpu_of("h100"), **keywords)
    inventory = inventory_of(request)
    estimates = [estimate(request, layout, inventory) for layout in request.layouts]
    file = io.StringIO()
    console = Console(file=file, width=width, highlight=False)
    show(Shown(request, inventory, estimates, advise(request, estimates)), console)
    return file.getvalue()


def test_columns_stand_in_order_at_the_width_of_a_page():
    out = shown("gpt3-13b", width=100, gpus=16, optimizer="mars-m")
    table = out[out.index("of one GPU") : out.index("ddp does not fit")]
    assert max(len(line) for line in table.splitlines()) <= 100
    title = table.splitlines()[0]
    assert title.index("ddp") < title.index("fsdp2") < title.index("hsdp 2x8")


def test_what_a_mode_does_not_have_is_a_dash():
    out = shown("gpt2-small", width=100, gpus=8)
    rows = {line[:45].strip(): line[45:].split() for line in out.splitlines() if line[45:]}
    (gathered,) = (cells for name, cells in rows.items() if name.startswith("gathered layers"))
    assert gathered[0] == "-"
    assert float(gathered[1]) > 0


def test_rows_of_nothing_are_left_out():
    out = shown("gpt2-small", width=100, gpus=1)
    for absent in ("gathered layers", "previous gradients", "link time", "Newton-Schulz", "norms"):
        assert absent not in out
    exact = shown("gpt2-small", width=100, gpus=1, settings=["exact=true"])
    assert "previous gradients, GB" in exact
    assert "mars-adamw (exact), bfloat16" in exact.splitlines()[0]


def test_accumulation_and_checkpointing_are_said():
    settings = ["batch_size=120", "activation_checkpointing=true"]
    out = shown("gpt2-small", width=100, gpus=2, settings=settings)
    second = "2 x h100 of 80.0 GB, 15 x 1024 tokens a GPU 4 times a step, activation checkpointing"
    assert out.splitlines()[1] == second
