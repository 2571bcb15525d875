"""The ``mars`` command: reads arguments and hands over to the room that does the work.

Every command is a dataclass of options. What a command needs is imported when it runs, so that
``mars --help`` does not wait for it. Exit codes: 0 done, 1 failed on the way, 2 refused, 130
interrupted.
"""

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mars._version import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from mars.bench.options import BenchOptions

_ABOUT = "MARS: variance-reduced optimizers, and the laboratory that proves what they do."
_NEEDS_EXTRA = "mars: the command needs the extra 'train': pip install 'mars-optimizer[train]'\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, or the given arguments, and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        import tyro  # noqa: F401  # here, to say at once what is missing

        from mars.config.errors import FailedError, RefusedError

        errors = _console(stderr=True)
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] not in ("rich", "tyro"):
            raise
        sys.stderr.write(_NEEDS_EXTRA)
        return 2
    try:
        _run(_parse(given), given, errors)
    except RefusedError as refusal:
        _print_plain(errors, f"mars: {refusal}")
        return 2
    except KeyboardInterrupt:
        _print_plain(errors, "mars: interrupted")
        return 130
    except BrokenPipeError:  # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (FailedError, OSError) as error:
        _print_plain(errors, f"mars: {error}")
        return 1
    except SystemExit as leave:  # help was asked for and has been printed
        return int(leave.code or 0)
    return 0


def _parse(arguments: list[str]) -> object:
    """Return the options of the command asked for, or raise `RefusedError` with one line."""
    import tyro

    from mars.bench.options import BenchOptions
    from mars.commands.eval_options import EvalOptions, ExportOptions
    from mars.commands.options import PrepareOptions, SampleOptions, TrainOptions
    from mars.commands.plan_options import PlanOptions
    from mars.commands.study_options import CompareOptions, DiagnoseOptions, ReportOptions
    from mars.config.errors import RefusedError

    commands = {
        "train": TrainOptions,
        "prepare": PrepareOptions,
        "compare": CompareOptions,
        "report": ReportOptions,
        "diagnose": DiagnoseOptions,
        "eval": EvalOptions,
        "export": ExportOptions,
        "sample": SampleOptions,
        "bench": BenchOptions,
        "plan": PlanOptions,
    }
    asked, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if asked == "--version":
        _print_plain(_console(), f"mars {__version__}")
        raise SystemExit(0)
    if asked in ("-h", "--help"):
        app = tyro.extras.SubcommandApp()
        for name, options in commands.items():
            app.command(name=name)(options)
        return app.cli(prog="mars", description=_ABOUT, args=["--help"])
    if asked not in commands:
        what = f"{asked!r} is no command" if asked else "a command is needed"
        raise RefusedError(f"{what}: {', '.join(commands)}; see mars --help")
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(commands[asked], prog=f"mars {asked}", args=_one_value_each(rest))
    except SystemExit as leave:
        if leave.code:
            raise RefusedError(_one_line(complaint.getvalue(), asked)) from None
        if asked == "train":
            from mars.commands.listing import show_keys

            show_keys(_console())
        raise


def _one_value_each(arguments: list[str]) -> list[str]:
    """Return arguments with ``--set a=1 b=2`` written as ``--set a=1 --set b=2``."""
    made: list[str] = []
    setting = False
    for argument in arguments:
        is_value = setting and "=" in argument and not argument.startswith("-")
        if is_value and made[-1] != "--set":
            made.append("--set")
        setting = argument == "--set" or is_value
        made.append(argument)
    return made


def _run(options: object, arguments: list[str], errors: "Console") -> None:
    """Do what the options of a command ask for."""
    from mars.bench.options import BenchOptions
    from mars.commands.eval_options import EvalOptions, ExportOptions
    from mars.commands.options import PrepareOptions, SampleOptions, TrainOptions
    from mars.commands.plan_options import PlanOptions
    from mars.commands.study_options import CompareOptions, DiagnoseOptions, ReportOptions

    if isinstance(options, BenchOptions):
        _bench(options, arguments, errors)
    elif isinstance(options, PrepareOptions):
        from mars.commands.prepare import prepare

        prepare(options, _console())
    elif isinstance(options, SampleOptions):
        from mars.commands.sample import sample

        sample(options, _console())
    elif isinstance(options, TrainOptions):
        from mars.commands.train import train

        train(options, _console())
    elif isinstance(options, CompareOptions):
        from mars.commands.compare import compare

        compare(options, _console(), command=shlex.join(["mars", *arguments]))
    elif isinstance(options, ReportOptions):
        from mars.commands.report import report

        report(options, _console())
    elif isinstance(options, DiagnoseOptions):
        from mars.commands.diagnose import diagnose

        diagnose(options, _console())
    elif isinstance(options, EvalOptions):
        from mars.commands.eval import evaluate

        evaluate(options, _console())
    elif isinstance(options, ExportOptions):
        from mars.commands.export import export

        export(options, _console())
    elif isinstance(options, PlanOptions):
        from mars.commands.plan import plan

        plan(options, _console())


def _one_line(box: str, command: str) -> str:
    """Return what a box of tyro's says in one line: its first section, and a near miss if any."""
    text = re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯]", "", box)
    lines = [line.strip() for line in text.splitlines()]
    body = [line for line in lines if line and not line.endswith("─")]
    rules = [i for i, line in enumerate(lines) if line and set(line) == {"─"}]
    if len(lines) > 1 and rules:
        body = [line for line in lines[1 : rules[0]] if line]
    said = " ".join(body).rstrip(".")
    meant = re.search(r"Perhaps you meant:\s*(--[\w-]+)", " ".join(lines))
    hint = f"; did you mean {meant[1]}?" if meant else f"; see mars {command} --help"
    return said + hint


def _bench(options: "BenchOptions", arguments: list[str], errors: "Console") -> None:
    from mars.bench.options import resolve

    plan = resolve(options)
    from mars.bench.report import show, write_json
    from mars.bench.run import run

    command = shlex.join(["mars", *arguments])
    report = run(plan, command=command, tell=lambda line: _progress(errors, line))
    _progress(errors, "done")
    show(report, _console())
    if plan.json is not None:
        write_json(report, plan.json)


def _console(*, stderr: bool = False) -> "Console":
    """Return a console that is as wide as the terminal, or 100 columns wide without one."""
    from rich.console import Console

    class Steady(Console):
        """A console that falls silent when nobody reads it any more: the work goes on."""

        def on_broken_pipe(self) -> None:
            """Say nothing from now on."""
            self.quiet = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())

    console = Steady(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = 100
    return console


def _progress(console: "Console", line: str) -> None:
    """Print a line of progress; on a terminal over the one before.

    Not a spinner: its thread would take its share of the time that is being measured.
    """
    if console.is_terminal:
        console.print(line.ljust(console.width - 1), markup=False, end="\r", overflow="crop")
    else:
        _print_plain(console, line)


def _print_plain(console: "Console", line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)


if __name__ == "__main__":
    raise SystemExit(main())
