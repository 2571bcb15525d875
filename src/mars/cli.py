"""The ``mars`` command: reads arguments and hands over to the room that does the work.

Every command is a dataclass of options. What a command needs is imported when it runs, so that
``mars --help`` does not wait for it. Exit codes: 0 done, 2 refused, 130 interrupted.
"""

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from mars.bench.options import BenchOptions

_NEEDS_EXTRA = "mars: the command needs the extra 'train': pip install 'mars-optimizer[train]'\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, or the given arguments, and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        from mars.bench.options import RefusedError

        errors = _console(stderr=True)
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] not in ("rich", "tyro"):
            raise
        sys.stderr.write(_NEEDS_EXTRA)
        return 2
    try:
        _bench(_parse(given), given, errors)
    except RefusedError as refusal:
        _print_plain(errors, f"mars: {refusal}")
        return 2
    except KeyboardInterrupt:
        _print_plain(errors, "mars: interrupted")
        return 130
    except SystemExit as leave:  # help was asked for and has been printed
        return int(leave.code or 0)
    return 0


def _parse(arguments: list[str]) -> "BenchOptions":
    """Return the options of the command asked for, or raise `RefusedError` with one line."""
    import tyro

    from mars.bench.options import BenchOptions, RefusedError

    app = tyro.extras.SubcommandApp()
    app.command(name="bench")(BenchOptions)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            options = app.cli(prog="mars", description="MARS optimizers.", args=arguments)
    except SystemExit as leave:
        if leave.code:
            raise RefusedError(_one_line(complaint.getvalue())) from None
        raise
    assert isinstance(options, BenchOptions)
    return options


def _one_line(box: str) -> str:
    """Return what a box of tyro's says in one line: its first section, and a near miss if any."""
    text = re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯]", "", box)
    lines = [line.strip() for line in text.splitlines()]
    body = [line for line in lines if line and not line.endswith("─")]
    rules = [i for i, line in enumerate(lines) if line and set(line) == {"─"}]
    if len(lines) > 1 and rules:
        body = [line for line in lines[1 : rules[0]] if line]
    said = " ".join(body).rstrip(".")
    meant = re.search(r"Perhaps you meant:\s*(--[\w-]+)", " ".join(lines))
    hint = f"; did you mean {meant[1]}?" if meant else "; see mars bench --help"
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

    console = Console(stderr=stderr, highlight=False)
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
