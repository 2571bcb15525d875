"""``mars compare``: from a preset or a study to a verdict and a page, or to where it goes on."""

import signal
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mars.commands.extras import REPORT, check_extra
from mars.commands.study_options import CompareOptions
from mars.comparison import study
from mars.comparison.plan import Failure, Plan, confirming_trials, search_trials
from mars.comparison.request import Request, resolve
from mars.config.errors import FailedError, RefusedError
from mars.config.keys import KEYS
from mars.config.toml import shown
from mars.metrics.display import print_text
from mars.metrics.quantities import count_text

_RUNS = Path("runs")


def compare(options: CompareOptions, console: Console, *, command: str) -> None:
    """Do what the command line asks for; ``command`` is that line."""
    if options.list:
        show_studies(console)
        return
    if options.jobs is not None and options.jobs < 1:
        raise RefusedError(f"--jobs must be at least 1, got {options.jobs}")
    plan = resolve(_request(options), command=command)
    folder = options.out or _default_place(plan, options.config)
    if options.dry_run:
        show_plan(plan, console)
        return
    # Refused now rather than after hours, at the page.
    check_extra(REPORT, command="compare", extra="report")
    _compare(plan, folder, console, options)


def _request(options: CompareOptions) -> Request:
    return Request(
        config=options.config,
        optimizers=options.optimizers,
        lr=options.lr,
        rates=options.rates,
        rate_factor=options.rate_factor,
        seeds=options.seeds,
        search_seeds=options.search_seeds,
        vary=options.vary,
        settings=options.set,
        baseline=options.baseline,
    )


def _default_place(plan: Plan, config: str | None) -> Path:
    path = Path(config or "")
    is_file = path.suffix == ".toml" or path.is_file()
    is_study = study.is_study(path) if is_file else config in study.names()
    return _RUNS / (plan.name if is_study else f"compare-{plan.name}")


def _compare(plan: Plan, folder: Path, console: Console, options: CompareOptions) -> None:
    from mars.comparison.conduct import conduct
    from mars.comparison.directory import PAGE, RESULTS
    from mars.comparison.live import make_view
    from mars.comparison.runner import Site, StoppedError
    from mars.report.table import show

    site = Site(folder=folder, jobs=options.jobs, keep_checkpoints=options.keep_checkpoints)
    try:
        done = conduct(plan, site, view=make_view(console))
    except StoppedError as stopped:
        print_text(console, Text(f"Stopped by {stopped.signal.name}, all is saved. Go on with:"))
        print_text(console, Text(f"  {plan.command}", style="cyan"))
        if stopped.signal == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(128 + stopped.signal) from None
    console.print()
    show(done.analysis, console)
    console.print()
    for label, name in (("runs", "runs"), ("results", RESULTS), ("page", PAGE)):
        print_text(console, Text.assemble((f"{label:8}", "dim"), str(folder / name)))
    if done.failures:
        raise _failed(done.failures)


def _failed(failures: tuple[Failure, ...]) -> FailedError:
    told = "; ".join(f"{path}: {reason}" for path, reason in failures)
    count = f"{len(failures)} run{'s' if len(failures) > 1 else ''} failed"
    return FailedError(f"{count}, which the same command tries again: {told}")


def show_studies(console: Console) -> None:
    """Print the studies that are shipped, one a line."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name in study.names():
        table.add_row(name, study.describe(name))
    console.print(table)


def show_plan(plan: Plan, console: Console) -> None:
    """Print what would run: the arms with their rates, and how much that is."""
    title = Text(plan.name, style="bold")
    print_text(console, title.append(f"  {plan.description}", style="not bold"))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("arm", no_wrap=True)
    table.add_column("rates")
    table.add_column("settings")
    for arm in plan.arms:
        label = f"{arm.label} (baseline)" if arm.label == plan.baseline else arm.label
        settings = ", ".join(
            f"{KEYS[key].last_part} = {shown(value)}" for key, value in arm.settings.items()
        )
        table.add_row(Text(label), ", ".join(f"{lr:g}" for lr in arm.rates), Text(settings))
    console.print(table)
    for line in _amounts(plan):
        print_text(console, Text(line))


def _amounts(plan: Plan) -> list[str]:
    """Return how many runs there are, and how many tokens they take."""
    search = search_trials(plan)
    confirming = confirming_trials(plan, {arm.label: arm.rates[0] for arm in plan.arms})
    trials = (*search, *confirming)
    count = sum(t.config.training.steps * t.config.count_per_step for t in trials)
    unit = "images" if plan.arms and trials[0].config.vision.network else "tokens"
    seeds = ", ".join(map(str, plan.seeds))
    searched = ", ".join(map(str, plan.seeds[: plan.search_seeds]))
    how = f"{len(search)} to search rates on seed{'s' if plan.search_seeds > 1 else ''} {searched}"
    if confirming:
        how += f", {len(confirming)} of the best rates on the other seeds"
    return [f"seeds {seeds}", f"{len(trials)} runs: {how}", f"{count_text(count)} {unit} in all"]
