"""What the paper reports for the nine tasks: GPT-2 trained on 50B tokens of FineWeb-Edu."""

from collections.abc import Mapping

NINE = (
    *("arc_easy", "arc_challenge", "boolq", "hellaswag", "openbookqa"),
    *("piqa", "winogrande", "mmlu", "sciq"),
)
"""The tasks in the paper's order, by their names in lm_eval."""

# In percent, in the order of NINE. OpenAI's rows are of the weights it published.
_SMALL = {
    "OpenAI": (39.48, 22.70, 48.72, 31.14, 27.20, 62.51, 51.62, 22.92, 64.40),
    "AdamW": (51.43, 26.54, 55.78, 36.26, 30.60, 64.53, 50.36, 24.49, 71.50),
    "MARS-AdamW": (52.23, 27.39, 55.84, 36.91, 32.20, 64.80, 49.96, 22.95, 71.10),
}
_XL = {
    "OpenAI": (51.05, 28.50, 61.77, 50.89, 32.00, 70.51, 58.33, 25.24, 76.00),
    "AdamW": (68.22, 38.40, 61.13, 53.93, 39.00, 72.69, 54.78, 25.47, 85.30),
    "MARS-AdamW": (66.54, 39.85, 63.82, 56.52, 41.20, 73.34, 56.59, 23.86, 86.00),
}
# Between the 124M of the small model and the 1558M of the XL one, as factors go.
_LARGE_PARAMETERS = 440_000_000

Rows = Mapping[str, Mapping[str, float]]


def published_rows(parameters: int) -> tuple[str, Rows]:
    """Return the published size nearest to a model's, and its rows: accuracy by task, as fractions.

    They are taken to be zero-shot, ``acc_norm`` where a task has it and ``acc`` elsewhere: the
    papers do not say which.
    """
    is_large = parameters > _LARGE_PARAMETERS
    rows = _XL if is_large else _SMALL
    fractions = {
        who: {task: percent / 100 for task, percent in zip(NINE, row, strict=True)}
        for who, row in rows.items()
    }
    return "GPT-2 XL" if is_large else "GPT-2 small", fractions


def primary_metric(metrics: Mapping[str, float]) -> str | None:
    """Return the metric that stands for a task: the published one, or the first there is."""
    preferred = [name for name in ("acc_norm", "acc") if name in metrics]
    return next(iter([*preferred, *metrics]), None)
