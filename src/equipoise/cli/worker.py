"""``equipoise work``: the process in which a comparison has its runs made, one after another, so that data are read once."""

import gc
import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout


def work() -> None:
    """Run the commands that come in on standard input, and answer each by its status and what it said on standard error.

    A command is a line with a JSON list: what the user trusts, and the arguments. An answer is a line with the two as a JSON list.
    """
    from equipoise.cli.main import main
    from equipoise.system import trust
    from equipoise.system.workers import loading

    with loading():
        import equipoise.runs.directory  # noqa: F401 (while the process that sends the commands loads it, too)
    gc.freeze()  # what is loaded stays

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what a library prints is no answer
    for line in sys.stdin:
        os.environ[trust.VARIABLE], *sys.argv[1:] = json.loads(line)
        said, status = io.StringIO(), 0
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            try:
                main()
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status > 128:  # stopped by a signal, which means this process, too
            sys.stderr.write(said.getvalue())
            raise SystemExit(status)
        answers.write(json.dumps([status, said.getvalue()]) + "\n")
        answers.flush()
        _tidy()


def _tidy() -> None:
    """Give back the memory of what has ended: the next command looks at how much is free."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
