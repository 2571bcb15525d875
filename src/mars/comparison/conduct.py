"""A comparison from its plan to its page: the search, the best rates on more seeds, the answer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mars.comparison.board import Board
from mars.comparison.directory import LOG, PAGE, RESULTS, check_place, taken
from mars.comparison.plan import (
    Failure,
    Plan,
    PlannedTrial,
    confirming_trials,
    search_trials,
    write_plan,
)
from mars.comparison.pool import Pool
from mars.comparison.runner import Runner, Site, StoppedError, View
from mars.config.errors import FailedError
from mars.report.analysis import Analysis, analyze
from mars.report.files import write_whole
from mars.report.page import write_page
from mars.report.results import collect
from mars.training.signals import StopRequest


@dataclass(frozen=True, slots=True)
class Conducted:
    """What a comparison came to."""

    analysis: Analysis
    failures: tuple[Failure, ...]


def conduct(plan: Plan, site: Site, *, view: View) -> Conducted:
    """Run what is missing of a comparison, and write its results and its page.

    Raises `RefusedError` before anything runs or is made, `StoppedError` after a signal, and
    `FailedError` if not one run could be finished.
    """
    folder = site.folder
    check_place(folder, plan)
    try:
        with taken(folder), StopRequest(is_silent=True) as stop:
            failures = _run(plan, site, view=view, stop=stop)
            view.close()
            return Conducted(_answer(folder), tuple(failures))
    finally:
        view.close()


def _run(plan: Plan, site: Site, *, view: View, stop: StopRequest) -> list[Failure]:
    """Run both phases, and return the trials that failed."""
    trials: Sequence[PlannedTrial] = search_trials(plan)
    unknown = len(plan.arms) * (len(plan.seeds) - plan.search_seeds)
    write_plan(plan, trials, site.folder, still_unknown=unknown)
    board = Board(plan)
    device = trials[0].config.training.device
    with Pool(device, log=site.folder / LOG) as pool:
        runner = Runner(site, pool=pool, board=board, view=view, stop=stop)
        try:
            runner.run(trials)
        except StoppedError:
            failures = runner.failures
            write_plan(plan, trials, site.folder, still_unknown=unknown, failures=failures)
            raise
        if board.has_result and plan.search_seeds < len(plan.seeds):
            confirming = confirming_trials(plan, best_rates(site.folder))
            trials = (*trials, *confirming)
            write_plan(plan, trials, site.folder, failures=runner.failures)
            board.expect_no_more()
            try:
                runner.run(confirming)
            finally:
                write_plan(plan, trials, site.folder, failures=runner.failures)
        else:
            write_plan(plan, trials, site.folder, failures=runner.failures)
        if not board.has_result:
            raise FailedError(
                f"all {len(trials)} runs failed; the first, {runner.failures[0].path}: "
                f"{runner.failures[0].reason}"
            )
        return runner.failures


def best_rates(folder: Path) -> dict[str, float]:
    """Return the best learning rate of each arm that has one, by the search so far."""
    arms = analyze(collect([folder])).arms
    return {each.arm.label: each.best_lr for each in arms if each.best_lr is not None}


def _answer(folder: Path) -> Analysis:
    analysis = analyze(collect([folder]))
    text = json.dumps(analysis.as_json(), indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(folder / RESULTS, f"{text}\n".encode())
    write_page(analysis, folder / PAGE)
    return analysis
