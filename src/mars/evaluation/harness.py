"""lm-evaluation-harness in this process, on a model of ours.

lm_eval sees one process with all requests; `score` divides them over the processes of a world. So
every process has the same results, and they do not depend on how many there are.
"""

import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NoReturn

import datasets  # type: ignore[import-untyped]  # it and lm_eval have no types: all is Any
import numpy as np
from lm_eval.api import task as task_module  # type: ignore[import-untyped]
from lm_eval.api.model import TemplateLM  # type: ignore[import-untyped]
from lm_eval.evaluator import evaluate  # type: ignore[import-untyped]
from lm_eval.utils import (  # type: ignore[import-untyped]
    get_rolling_token_windows,
    make_disjoint_window,
)

from mars.evaluation.published import primary_metric
from mars.evaluation.results import TaskResult
from mars.evaluation.scoring import Advance, Compute, Pair, score, unheard
from mars.evaluation.subject import Subject
from mars.evaluation.tasks import Asked, Loaded, data_of

_LOUD = ("lm_eval", "datasets", "huggingface_hub")
_BOOTSTRAPS = 1000
# Choices of a question share its text, and come one after the other.
_REMEMBERED_TEXTS = 64


class MarsLM(TemplateLM):  # type: ignore[misc]  # untyped, as above
    """A subject as lm_eval calls it."""

    def __init__(self, subject: Subject, compute: Compute, *, advance: Advance = unheard):
        super().__init__()
        self._subject = subject
        self._compute = compute
        self._advance = advance
        self._ids = lru_cache(_REMEMBERED_TEXTS)(self._encoded)

    @property
    def eot_token_id(self) -> int:
        """The token that stands before a text without context."""
        return self._subject.tokenizer.eot

    @property
    def max_length(self) -> int:
        """The tokens that the model can read."""
        return self._subject.model.config.context_length

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,  # noqa: ARG002  # there are none to add
        **_: object,
    ) -> list[int]:
        """Return the tokens of a text."""
        return list(self._ids(string))

    def _encoded(self, string: str) -> tuple[int, ...]:
        return tuple(self._subject.tokenizer.encode(string).tolist())

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = True
    ) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether it is the likeliest."""
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return found

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[object, list[int], list[int]]], **_: object
    ) -> list[tuple[float, bool]]:
        return [tuple(each) for each in self._score([Pair(*tokens) for _, *tokens in requests])]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:  # noqa: ARG002  # the name is lm_eval's
        """Return the log-likelihood of each text, every token predicted once."""
        windows = [list(self._rolling(request.args[0])) for request in requests]
        scores = iter(self._score([pair for pairs in windows for pair in pairs]))
        return [sum(next(scores).log_likelihood for _ in pairs) for pairs in windows]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> NoReturn:
        """Refuse: `load_tasks` lets no such task through."""
        raise NotImplementedError

    def _rolling(self, text: str) -> Iterator[Pair]:
        tokens = self.tok_encode(text)
        rolling = get_rolling_token_windows(
            token_list=tokens,
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length,
            context_len=1,
        )
        for window in rolling:
            yield Pair(*make_disjoint_window(window))

    def _score(self, pairs: list[Pair]) -> list[Any]:
        model = self._subject.model
        return list(score(model, pairs, compute=self._compute, advance=self._advance))


def run_tasks(
    subject: Subject,
    loaded: Loaded,
    asked: Asked,
    *,
    compute: Compute,
    advance: Advance = unheard,
) -> dict[str, TaskResult]:
    """Return the results of tasks and groups by name; in a world, in every process."""
    random.seed(asked.seed)
    np.random.seed(asked.seed)
    results = evaluate(
        lm=MarsLM(subject, compute, advance=advance),
        task_dict=loaded,
        limit=asked.limit,
        bootstrap_iters=_BOOTSTRAPS,
        log_samples=False,
    )
    data = dict(data_of(loaded))
    return {
        name: _result(name, measured, results, data=data.get(name))
        for name, measured in results["results"].items()
    }


@contextmanager
def hushed() -> Iterator[None]:
    """Keep what the packages below would print on the way from people's screens."""
    loggers = [logging.getLogger(name) for name in _LOUD]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    bar = task_module.tqdm
    task_module.tqdm = lambda items, **_: items
    shows_bars = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shows_bars:
            datasets.enable_progress_bars()
        task_module.tqdm = bar
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _result(
    name: str, measured: dict[str, Any], results: dict[str, Any], *, data: dict[str, Any] | None
) -> TaskResult:
    """Return lm_eval's ``{"acc,none": 0.3, "acc_stderr,none": 0.01}`` sorted by what it is."""
    metrics: dict[str, float] = {}
    errors: dict[str, float] = {}
    for key, value in measured.items():
        metric, comma, filtered = key.partition(",")
        if not comma or not isinstance(value, int | float):
            continue
        label = metric.removesuffix("_stderr") + (f",{filtered}" if filtered != "none" else "")
        (errors if metric.endswith("_stderr") else metrics)[label] = float(value)
    samples, members = results["n-samples"], _leaves(name, results["group_subtasks"])
    return TaskResult(
        metrics=metrics,
        errors=errors,
        primary=primary_metric(metrics),
        examples=sum(samples[each]["effective"] for each in members),
        available=sum(samples[each]["original"] for each in members),
        num_fewshot=max(results["n-shot"][each] for each in members),
        version=str(results["versions"].get(name, "")),
        data=data,
    )


def _leaves(name: str, members: dict[str, list[str]]) -> list[str]:
    """Return the tasks of a group, or the task itself."""
    if name not in members:
        return [name]
    return [leaf for each in members[name] for leaf in _leaves(each, members)]
