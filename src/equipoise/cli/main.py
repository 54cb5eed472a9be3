"""The command line: its commands, exit statuses and error messages.

No module that a command's options need imports PyTorch: the body of a command imports what it uses.
"""

import atexit
import gc
import inspect
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, partial
from io import TextIOWrapper
from pkgutil import resolve_name
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from click import Command as AnyCommand, Context, NoSuchOption
from rich.markup import escape
from typer import Option
from typer.core import TyperCommand
from typer.main import get_command

from equipoise import __version__
from equipoise.cli import (
    analyse,
    completion,
    console,
    contribution,
    data,
    flower,
    pack,
    privacy,
    report,
    reproduce,
    schema,
)
from equipoise.cli.export import export, predict, threshold
from equipoise.cli.init import OPTIONS, init
from equipoise.cli.listing import methods, scenarios
from equipoise.cli.options import CHOICE, PANEL, add, command
from equipoise.cli.run import benchmark, compare, quickstart, resume, run, tune
from equipoise.cli.status import status, track
from equipoise.data.tables.options import COLUMNS
from equipoise.system import errors, trust, workers
from equipoise.system.suggestions import some


class Command(TyperCommand):
    """A command that says how an option of the data, or a hyper-parameter, is given, where it is taken for one of the command."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """As without this, but for what is said of an option that is not known."""
        try:
            return super().parse_args(ctx, args)
        except NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            methods = completion.catalogue()["methods"].items()
            having = [m for m, entry in methods if any(name == each["name"] for each in entry["hyper_parameters"])]
            tuning = PANEL.get(name.removeprefix("no_")) == CHOICE
            if tuning and any("--tune" in parameter.opts for parameter in self.params):
                given = "here give --tune N" if name == "draws" else "compare takes its result by --config"
                message = f"No such option '{error.option_name}'. It is an option of equipoise tune; {given}."
                raise NoSuchOption(error.option_name, message, ctx=error.ctx) from None
            if (name in OPTIONS or having) and any(parameter.name == "set_" for parameter in self.params):
                what = "an option of your data" if name in OPTIONS else f"a hyper-parameter of {some(having, 3)}"
                value = "COLUMN" if name in COLUMNS else "VALUE"
                given = f"{name}={value}" if name in OPTIONS else f"{having[0]}.{name}=VALUE"
                message = f"No such option '{error.option_name}'. It is {what}: --set {given}."
                raise NoSuchOption(error.option_name, message, ctx=error.ctx) from None
            raise


app = typer.Typer(
    name="equipoise",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Fair federated learning: published methods in the form of their papers, which combine freely.",
    epilog="Start with `equipoise quickstart`. Add `--debug` to any command for a traceback, and `--trust` to agree to the code, "
    "files and addresses that somebody else's run or configuration names.",
)
COMMANDS: dict[Callable[..., Any], str] = {  # with an example
    quickstart: "equipoise quickstart fashion",
    run: "equipoise run --method fedproto+fedheal --rounds 40 --set fedheal.tau=0.4",
    compare: "equipoise compare fedavg afl qffl fedheal --seeds 3 --jobs 2",
    tune: "equipoise tune fedavg fedprox qffl --scenario digits --draws 16 --by worst",
    benchmark: "equipoise benchmark fair-small --shard 1/2",
    resume: "equipoise resume runs/fedheal-digits-seed0",
    status: "equipoise status runs",
    report.report: "equipoise report runs/quickstart/*/ --output report.html --figures",
    export: "equipoise export runs/fedsac-digits-pow-seed0 --client all",
    threshold: "equipoise threshold runs/first --sensitivity 0.9",
    predict: "equipoise predict heart-model patients.csv --output predictions.csv",
    contribution.contribution: "equipoise contribution runs/compare-heart/fedavg-seed0 --evaluator gtg --utility loss --utility worst",
    report.audit: "equipoise audit predictions.csv --label y --probability p --group sex --group race",
    methods: "equipoise methods fedheal",
    scenarios: "equipoise scenarios --json",
    init: "equipoise init --data my/ --output equipoise.toml",
    reproduce.reproduce: "equipoise reproduce fedheal/table2 --embedded --seeds 1",
    pack.pack: "equipoise pack runs/quickstart --with-data",
    pack.verify: "equipoise verify quickstart.zip --run-code",
    track: "equipoise track runs/quickstart --to mlflow",
    privacy.privacy: "equipoise privacy --noise 20 --rounds 40",
}
for function, example in COMMANDS.items():
    add(app, f"`{example}`", cls=Command)(function)
for group in (analyse.app, data.app, schema.app, flower.app):
    app.add_typer(group)


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, Option("--version", help="Print the version.")] = False,
    portable: Annotated[
        bool,
        Option(
            "--portable",
            help="Before the command: take only instructions that processors of Intel and AMD have in common, so that with SGD "
            "the bits of a run do not depend on which it is. Slower for dense networks.",
        ),
    ] = False,
) -> None:
    if version:
        console.out.print(f"equipoise {__version__}", highlight=False)
        raise typer.Exit
    if portable:  # libraries read these switches when they are loaded
        from equipoise.system import environment

        arguments = [a for a in sys.argv[1:] if a != "--portable"]
        os.execve(sys.executable, workers.python("-m", "equipoise", *arguments), environment.portable())


@cache
def commands() -> AnyCommand:
    """All commands; a process that runs one after another makes them once."""
    atexit.register(gc.freeze)  # the end looks through everything that is loaded for garbage, several times
    return get_command(app)


LESS = {  # what takes less memory, by the parameter that a command has for it
    "jobs": "fewer --jobs",
    "workers": "fewer --workers",
    "participation": "a smaller --participation",
    "batch_size": "a smaller --batch-size",
    "set_": "smaller images (--set size=32)",
    "network": "a smaller --network",
}


class Stopped(BaseException):
    """Ctrl-C or SIGTERM; not a KeyboardInterrupt, on which Typer ends without a message."""


def _stop(number: int, _: FrameType | None) -> None:
    raise Stopped(number)


def main() -> NoReturn:
    """Run the command line; user errors exit with 2, failures with 1, a stop with 130 or 143, all with one line."""
    debug = "--debug" in sys.argv
    arguments = [a for a in sys.argv[1:] if a not in ("--debug", "--trust")]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that lacks a sign shows "?" for it
            stream.reconfigure(errors="replace")
    try:
        with trust.agreed(trust.EVERYTHING * ("--trust" in sys.argv)):
            _run(partial(commands(), arguments, prog_name="equipoise", standalone_mode=True), arguments, debug)
    finally:
        _flush(debug)
    raise SystemExit(0)


def _run(action: Callable[[], object], arguments: Sequence[str], debug: bool) -> None:
    """Do what a command with some arguments does; an error ends it with a status and one line."""
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with workers.isolated():  # libraries start Python, too
            action()
    except errors.RunError as error:
        _fail(str(error), 1, debug, error.kind)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        advice = "Complete results are kept; correct this, then give the same command again."
        _fail(f"{where}{error.strerror or error}. {advice}{_noted(error)}", 1, debug)
    except (ValueError, TypeError, ImportError, OverflowError) as error:  # of an import: an extra that is not installed
        _fail(f"{error}{_noted(error)}", 2, debug)
    except Stopped as stop:
        message = "Stopped. The same command continues after the last complete round; of a single run, equipoise resume does, too."
        _fail(" ".join(getattr(stop, "__notes__", ())) or message, 128 + int(stop.args[0]), debug)
    except Exception as error:
        if errors.out_of_memory(error):
            _fail(_full(arguments, error), 1, debug, errors.MEMORY)
        defect = f"{type(error).__name__}: {error}. This is a defect of Equipoise; --debug shows where."
        _fail(f"{defect}{_noted(error)}", 1, debug, errors.CODE)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _noted(error: BaseException) -> str:
    """What was noted about an error on its way, a sentence each behind a blank."""
    return "".join(f" {note}" for note in getattr(error, "__notes__", ()))


def _full(arguments: Sequence[str], error: BaseException) -> str:
    """What was being done when the memory was full, and what takes less."""
    doing = next((a for a in arguments if not a.startswith("-")), "")
    takes = [name for f in COMMANDS if f.__name__ == doing for name in inspect.signature(command(f)).parameters]
    less = [text for option, text in LESS.items() if option in takes]
    asked = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    return (
        f"equipoise {doing} needs more memory than there is{f' ({asked})' if asked else ''}.{_noted(error)} "
        f"{'Take less at a time: ' * bool(less)}{', '.join(less)}{'. ' * bool(less)}"
        "equipoise run --dry-run estimates what a run needs. Complete results are kept."
    )


def _flush(debug: bool) -> None:
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter will flush once more
        if not isinstance(error, BrokenPipeError):  # a reader such as head has closed the pipe
            _fail(f"standard output: {error.strerror}.", 1, debug)


class Failed(SystemExit):
    """The end of a command that failed: its status, the ``kind`` of the error and its ``message``."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(status)
        self.kind, self.message = kind, message


def _fail(message: str, status: int, debug: bool, kind: str = "") -> NoReturn:
    if debug:
        console.err.print_exception()
    console.err.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True, highlight=False)
    raise Failed(status, kind, message)


@app.command(hidden=True)
def work() -> None:
    """Call the functions that come in on standard input, and answer each by its status and error.

    In such a process a plan has its runs made, one after another, so that data are read once.
    A call is a line with a JSON list: what the user trusts, the function's name, its arguments, and those by name. An answer is a line
    with a JSON list: the status, the kind of an error, and its text.
    """
    with workers.loading():
        import equipoise.runs.plan  # noqa: F401 (while the process that sends the calls loads it, too)
    gc.freeze()  # what is loaded stays

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what a library prints is no answer
    for line in sys.stdin:
        os.environ[trust.VARIABLE], name, given, keywords = json.loads(line)
        said, status, kind, text = io.StringIO(), 0, "", ""
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            try:
                _run(partial(resolve_name(name), *given, **keywords), ["resume"], debug=False)
            except Failed as end:
                status, kind, text = int(str(end.code)), end.kind, end.message
        if status > 128:  # stopped by a signal, which means this process, too
            sys.stderr.write(said.getvalue())
            raise SystemExit(status)
        _tidy()  # before others hear that its memory is free
        answers.write(json.dumps([status, kind, text]) + "\n")
        answers.flush()


def _tidy() -> None:
    """Give back the memory of what has ended: the next command looks at how much is free."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
