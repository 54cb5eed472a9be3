"""Calls elsewhere: as tasks of an array job in the queue of a cluster (Slurm), or by executors of other libraries. They may outlive this process.

A call is a line of JSON in a batch script, which others cannot change, and its answer one in a folder that all machines share; nothing is pickled.
What `squeue` lists decides whether a call is still coming: accounting (`sacct`) is not needed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from equipoise.system import calls
from equipoise.system.errors import CLAIMED, QUEUE, RunError
from equipoise.system.files import make_private, read_regular, write_atomically
from equipoise.system.ranges import check_fields, number, setting, text
from equipoise.system.suggestions import shorten, unknown
from equipoise.system.text import plural, visible
from equipoise.system.workers import line_of, python

log = logging.getLogger(__name__)

SLURM, RAY, DASK = "slurm", "ray", "dask://"
RUNNING: Final = ""  # instead of why a task waits
LOOK: Final = 2.0  # seconds between looks at the queue
ABSENCE: Final = 3  # looks in which a call is neither in the queue nor answered, before it is lost
WAIT: Final = 20  # seconds for a scheduler to answer
TRIES: Final = 3  # submissions of a call that ends without an answer and without progress
JOB: Final = ".job"  # in the folder of a call: its task in the queue, and where its answer will be
Answer = tuple[int, str, str]  # the status of a call, and the kind and text of its error
LARGE: Final = 1 << 20  # bytes of an answer at most
UNREADABLE: Final = (OSError, ValueError, TypeError, OverflowError, RuntimeError)  # of what others may have left
SILENCE: Final = 300  # seconds after which a queue that does not answer is an error
ARRAY: Final = 1000  # tasks of an array at most, as Slurm allows if its settings state nothing else
SQUEUE: Final = ("squeue", "--me", "--noheader", "--array", "--format=%F_%K %t %r")
OURS: Final = {  # options of sbatch by which tasks are followed
    "--array", "-a", "--clusters", "-M", "--cluster", "--job-name", "-J", "--no-requeue", "--output", "-o", "--parsable", "--signal", "--wrap",
}  # fmt: skip
SHORTEST: Final = 60  # seconds of the shortest time limit that Slurm keeps
MARGIN: Final = 30  # seconds before its time limit at which a task is put back into the queue
TASK: Final = """
answer={folder}/$SLURM_ARRAY_TASK_ID.answer
again() {{ [ $SECONDS -gt {margin} ] && scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"; }}
trap again USR1
sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" <<'END' | {command} > "$answer.part" &
{calls}
END
wait $!
wait $!
[ -s "$answer.part" ] && mv "$answer.part" "$answer"
"""


@dataclass(frozen=True)
class Launch:
    """What a cluster is asked for, for each run.

    Parameters
    ----------
    partition, account : as the cluster names them; without them, its defaults.
    time : limit of a task, such as 2:00:00. A run continues in a new task from its last complete round.
    gpus : of each run, >= 0.
    cpus : of each run, >= 1.
    memory : of each run, such as 8G.
    width : tasks at a time, >= 0; 0: as many as the queue allows.
    extra : further options of sbatch, such as --constraint=a100.
    """

    partition: str = setting(text(""), "partition of the cluster")
    account: str = setting(text(""), "account that pays")
    time: str = setting(text(""), "time limit of a task, such as 2:00:00")
    gpus: int = setting(number(0, 0, whole=True), "GPUs of a run")
    cpus: int = setting(number(1, 1, whole=True), "processor cores of a run")
    memory: str = setting(text(""), "memory of a run, such as 8G")
    width: int = setting(number(0, 0, whole=True), "tasks at a time; 0: all that the queue allows")
    extra: str = setting(text(""), "further options of sbatch, such as --constraint=a100")

    def __post_init__(self) -> None:
        check_fields(self)
        given = [word.partition("=")[0] for word in shlex.split(self.extra)]
        if taken := [name for name in given if name in OURS or name[:2] in OURS]:
            raise ValueError(f"on: extra has {taken[0]}, by which Equipoise follows the tasks. Leave it out.")
        if self.time and not self.time.isalpha() and 0 < (seconds := seconds_of(self.time)) < SHORTEST:  # 0: no limit
            raise ValueError(
                f"on: time must be a minute or more, as Slurm has no shorter limit; found {self.time!r}, {seconds} seconds."
            )

    def options(self, tasks: int) -> list[str]:
        """Options of sbatch for an array of so many tasks."""
        named = {name: getattr(self, name) for name in ("partition", "account", "time")}
        named |= {"mem": self.memory, "gres": f"gpu:{self.gpus}" * (self.gpus > 0), "cpus-per-task": self.cpus}
        named["array"] = f"0-{tasks - 1}" + f"%{self.width}" * (self.width > 0)
        return [*(f"--{name}={value}" for name, value in named.items() if value), *shlex.split(self.extra)]


def seconds_of(limit: str) -> int:
    """A time limit in the forms of Slurm: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S.

    Raises
    ------
    ValueError : another form.
    """
    days, dash, rest = limit.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in (*parts, *[days][: len(dash)])) or len(parts) > 3:
        raise ValueError(f"on: time must be as 90 (minutes), 2:00:00 or 1-12:00 (a day and 12 hours); found {limit!r}.")
    hours, minutes, seconds = [*parts, "0", "0"][:3] if dash or len(parts) == 3 else ["0", *parts, "0"][:3]
    return 86400 * int(days or 0) + 3600 * int(hours) + 60 * int(minutes) + int(seconds)


def launch_of(stated: str) -> tuple[str, Launch]:
    """The place that a text such as ``slurm(partition=gpu, time=2:00:00)`` names, and what its brackets ask for.

    Raises
    ------
    ValueError : no such place, or nothing that can be asked for.
    """
    call = calls.read(stated)
    if not call.complete or (call.name not in (SLURM, RAY) and not call.name.startswith(DASK)):
        raise ValueError(
            f"on must be slurm, ray or {DASK}HOST:PORT, and slurm may have brackets: slurm(time=2:00:00); found {stated!r}."
        )
    kinds = {f.name: type(f.default) for f in fields(Launch)}
    asked: dict[str, Any] = {}
    for name, value in call.pairs or ():
        if name not in kinds:
            raise ValueError(f"on: {unknown('option', name or value, [*kinds])}")
        asked[name] = int(value) if kinds[name] is int and value.isdecimal() else value.strip("\"'")
    return call.name, Launch(**asked)


@dataclass
class Call:
    """A call that waits for its answer.

    Parameters
    ----------
    line : the call, in the form of :func:`equipoise.system.workers.line_of`.
    folder : what it changes.
    task : its name in the queue; empty before it is submitted.
    answer : where its answer will be.
    """

    line: str
    folder: Path
    task: str = ""
    answer: Path = Path()
    absent: int = 0
    tries: int = 0
    reached: int = -1

    @property
    def result(self) -> Answer | None:
        """Status, kind and text of the answer; None if there is none yet."""
        with contextlib.suppress(*UNREADABLE):
            status, kind, text = json.loads(read_regular(self.answer, most=LARGE))
            return int(status), str(kind), str(text)
        return None


class Queue(Executor):
    """Calls functions of modules elsewhere, and follows the calls in a thread; what they return is not fetched.

    ``pause`` is the time between looks, in seconds. ``begin`` returns what is followed of a call, ``look`` reads the answers that have come, and
    ``leaving`` is the sentence about calls that are not followed to their end.
    """

    pause: float
    leaving: Callable[[Sequence[Any]], str]
    begin: Callable[[str, Sequence[Any]], Any]
    look: Callable[[Mapping[Future[Any], Any]], None]

    def __init__(self) -> None:
        self.calls, self.lock, self.ended = dict[Future[Any], Any](), threading.Lock(), threading.Event()
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def submit(self, function: Callable[..., object], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        """Call a function of a module with arguments that JSON has."""
        future: Future[Any] = Future()
        call = self.begin(line_of(function, arguments, keywords), arguments)
        with self.lock:
            self.calls[future] = call
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop following; calls go on elsewhere."""
        self.ended.set()
        self.thread.join()
        if left := [call for future, call in self.calls.items() if not future.done()]:
            text, stop = self.leaving(left), sys.exc_info()[1]
            if stop is None or isinstance(stop, Exception):
                log.warning("%s", text)
            else:  # Ctrl-C, which the command reports with what is noted
                stop.add_note(f"Stopped. {text}")

    def _follow(self) -> None:
        """Look at calls until the executor ends."""
        while not self.ended.wait(self.pause):
            with self.lock:
                calls = {future: call for future, call in self.calls.items() if not future.done()}
            with failing([*calls]):
                if calls:
                    self.look(calls)


class Slurm(Queue):
    """Calls functions in tasks of array jobs; their first argument is the folder that they change.

    Calls that are submitted within a moment are one array. A call whose folder has a task in the queue already is followed, not submitted again.
    When the executor ends, tasks stay in the queue.

    Parameters
    ----------
    folder : for answers and logs; all machines must share it.
    launch : what the cluster is asked for.
    progress : of a folder, a number that grows while its call is not in vain.

    Raises
    ------
    RunError : this machine has no Slurm, or the folder is a link or another user's.
    """

    pause = LOOK

    def __init__(self, folder: Path, launch: Launch, progress: Callable[[Path], int]) -> None:
        if not shutil.which("sbatch"):
            raise RunError("There is no sbatch on this machine. Start the command on a login node of the cluster.")
        if folder.is_symlink() or (folder.exists() and folder.stat().st_uid != os.geteuid()):
            raise RunError(
                f"{folder} is a link, or of another user, who could change what tasks write. Choose another --runs."
            )
        self.folder, self.launch, self.progress, self.reasons = folder.resolve(), launch, progress, frozenset[str]()
        super().__init__()

    def leaving(self, calls: Sequence[Call]) -> str:
        """What remains in the queue, how to follow it, and how to end it."""
        jobs, n = jobs_of(calls), len(calls)
        end = f" To end {'them' if n > 1 else 'it'}: scancel {jobs}" * bool(jobs)
        return f"Left in the queue: {plural(n, 'run')}. The same command follows {'them' if n > 1 else 'it'}.{end}"

    def begin(self, line: str, arguments: Sequence[Any]) -> Call:
        """A call, with its task if it has one."""
        call = Call(line, Path(arguments[0]))
        with contextlib.suppress(*UNREADABLE):
            call.task, answer, given = noted(call.folder)
            call.answer = Path(answer) if given == [*arguments] else Path()  # it may pause earlier
        return call

    def look(self, calls: Mapping[Future[Any], Call]) -> None:
        """Read answers, and submit calls that have no task. An error of some is none of the others."""
        if (queue := listed(self.ended)) is None:
            return
        listed_calls = [call for call in calls.values() if call.task in queue]
        if earlier := [call for call in listed_calls if not call.tries]:
            text = "%s in the queue from an earlier command, with its options: job %s"
            log.warning(text, plural(len(earlier), "run"), jobs_of(earlier))
        before, self.reasons = self.reasons, frozenset(queue[call.task] for call in listed_calls)
        if self.reasons and RUNNING not in self.reasons and self.reasons != before:
            waiting = plural(len(listed_calls), "run")
            log.warning("%s waiting in job %s: %s", waiting, jobs_of(listed_calls), ", ".join(sorted(self.reasons)))
        new = [future for future, call in calls.items() if self._due(future, call, queue)]
        size = most_tasks() if new else 1
        for k in range(0, len(new), size):
            with failing(new[k : k + size]):
                self._submit([calls[future] for future in new[k : k + size]])

    def _due(self, future: Future[Any], call: Call, queue: Container[str]) -> bool:
        """Whether a call is to be submitted; its answer is read if it has come, and an error is its own."""
        with failing([future]):
            call.absent += 1
            if call.task in queue:
                call.absent, call.tries = 0, max(call.tries, 1)
            elif call.tries and (result := call.result) is not None and result[1] != CLAIMED:
                (call.folder / JOB).unlink(missing_ok=True)
                settle(future, *result)
            elif not call.tries or call.absent >= ABSENCE:  # files of other machines appear late
                reached = self.progress(call.folder)
                call.tries, call.reached = 1 if reached > call.reached else call.tries + 1, reached
                if call.tries <= TRIES:
                    return True
                raise RunError(f"The queue ended it {TRIES} times without progress. {last_words(call.answer)}")
        return False

    def _submit(self, calls: Sequence[Call]) -> None:
        folder = self.folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        make_private(folder)
        lines, command = "\n".join(call.line for call in calls), shlex.join(python("-m", "equipoise", "work"))
        script = TASK.format(margin=MARGIN, folder=shlex.quote(str(folder)), command=command, calls=lines)
        log_file = f"{folder}/".replace("%", "%%") + "%a.log"
        fixed = [
            "--parsable", "--requeue", "--open-mode=append", f"--signal=B:USR1@{MARGIN}", f"--output={log_file}",
            f"--job-name=equipoise-{self.folder.parent.name}",
        ]  # fmt: skip
        status, out, error = asked("sbatch", *fixed, *self.launch.options(len(calls)), text=f"#!/bin/bash{script}")
        if status:
            raise RunError(f"sbatch refuses the runs: {error.removeprefix('sbatch: error: ')}", QUEUE)
        job = out.strip().partition(";")[0]
        try:
            for k, call in enumerate(calls):
                call.task, call.answer, call.absent = f"{job}_{k}", folder / f"{k}.answer", 0
                write_atomically(call.folder / JOB, json.dumps([call.task, str(call.answer), json.loads(call.line)[2]]))
        except OSError:  # a full disk: nobody could follow them
            asked("scancel", job)
            raise
        log.warning("%s in the queue: job %s", plural(len(calls), "run"), job)


def noted(folder: Path) -> tuple[str, str, list[Any]]:
    """What is noted in the folder of a call: its task, where its answer will be, and its arguments; errors are :data:`UNREADABLE`."""
    task, answer, arguments = json.loads(read_regular(folder / JOB, most=LARGE))
    return str(task), answer, arguments


def jobs_of(calls: Sequence[Call]) -> str:
    """The array jobs of some calls, as scancel takes them."""
    return " ".join(dict.fromkeys(call.task.partition("_")[0] for call in calls if call.task))


def most_tasks() -> int:
    """How many tasks an array of this cluster may have."""
    size = re.search(r"^MaxArraySize\s*=\s*(\d+)", asked("scontrol", "show", "config")[1], re.MULTILINE)
    return max(1, min(ARRAY, int(size[1]))) if size else ARRAY


def waits(folder: Path, tasks: Callable[[], Mapping[str, str]]) -> str | None:
    """Why the task of a call waits, of the ``tasks`` of a queue, which are asked for if needed; None: it has no task there."""
    with contextlib.suppress(*UNREADABLE):
        task, *_ = noted(folder)
        return tasks().get(task)
    return None


def tasks() -> Mapping[str, str]:
    """The tasks of :func:`listed`; none if no queue answers."""
    status, out, _ = asked(*SQUEUE) if shutil.which(SQUEUE[0]) else (1, "", "")
    return {} if status else _tasks(out)


def last_words(answer: Path) -> str:
    """Where the log of a call is, with its last line; or what it means that there is none."""
    try:
        lines = read_regular(file := answer.with_suffix(".log"), most=LARGE).decode(errors="replace").splitlines()
    except OSError:
        return f"It has written no log: all machines need {answer.parent}, and Python, under the same path."
    return f"Its log, {file}, ends: {shorten(visible(lines[-1]))}" if lines else f"Its log, {file}, is empty."


class Others(Queue):
    """Calls functions by the executor of another library: an object with `submit(function, *arguments)`, which returns an object with `done` and `result`.

    A call whose worker was lost is submitted again, at most :data:`TRIES` times.

    Parameters
    ----------
    executor : of the other library.
    answered : calls what a line states; it returns a status, the kind of an error and its text. Its second argument differs in every call:
        some executors, such as Dask's, do not call a function again with the same arguments.
    own : nobody else uses the executor, which ends with this object.
    """

    pause = 0.1

    def __init__(self, executor: Any, answered: Callable[[str, str], Answer], *, own: bool = False) -> None:
        self.executor, self.answered, self.own = executor, answered, own
        super().__init__()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop following, and end an executor that is ours."""
        super().shutdown()
        if self.own:
            self.executor.shutdown(wait=False)

    def begin(self, line: str, arguments: Sequence[Any]) -> dict[str, Any]:
        """A call that their executor has."""
        return {"line": line, "job": self._job(line), "tries": 1}

    def leaving(self, calls: Sequence[Any]) -> str:
        """What is not trained to its end."""
        return (
            f"Left unfinished: {plural(len(calls), 'run')}. The same command continues after their last complete round."
        )

    def look(self, calls: Mapping[Future[Any], dict[str, Any]]) -> None:
        """Read the answers that have come."""
        for future, call in calls.items():
            with failing([future]):
                if not call["job"].done():
                    continue
                try:
                    settle(future, *call["job"].result())
                except Exception as error:  # of their library: a lost worker, a lost connection
                    text = f"{type(error).__name__}: {str(error).strip() or 'a worker was lost'}"
                    if call["tries"] == TRIES:
                        raise RunError(text) from None
                    log.warning("A run is submitted again: %s", text)
                    call["job"], call["tries"] = self._job(call["line"]), call["tries"] + 1

    def _job(self, line: str) -> Any:
        return self.executor.submit(self.answered, line, secrets.token_hex(8))


class Ray:
    """The workers of a Ray cluster, as an executor.

    Parameters
    ----------
    cpus, gpus : of each call.

    Raises
    ------
    RunError : Ray is not installed, or there is no cluster that this process can reach.
    """

    def __init__(self, cpus: int, gpus: int) -> None:
        self.ray = ray = _package("ray")
        try:
            ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True)
        except ConnectionError as error:
            raise RunError(
                f"No Ray cluster answers: start one with ray start --head, or name it in RAY_ADDRESS ({error})."
            ) from None
        self.errors = contextlib.redirect_stdout(sys.stderr)  # where Ray prints what a lost node has logged
        self.errors.__enter__()
        self.remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
        """Call a function on one of the workers; a future."""
        return self.remote(function).remote(*arguments).future()

    def shutdown(self, *, wait: bool = True) -> None:
        """Leave the cluster."""
        self.ray.shutdown()
        self.errors.__exit__(None, None, None)


def dask(address: str) -> Any:
    """The workers of a Dask cluster at ``dask://HOST:PORT``, as an executor.

    Raises
    ------
    RunError : Dask is not installed, or its scheduler does not answer.
    """
    try:
        client = _package("distributed").Client(f"tcp://{address.removeprefix(DASK)}", timeout=WAIT)
    except OSError as error:
        raise RunError(f"No Dask scheduler answers at {address}: {error}.") from None
    return client.get_executor(pure=False, retries=0)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise RunError(f"{name} is not installed here: pip install {name}") from None


def settle(future: Future[Any], status: int, kind: str, text: str) -> None:
    """Let a future have the result, or the error, that an answer states."""
    if status:
        future.set_exception(RunError(text.rstrip("."), kind))
    else:
        future.set_result(None)


@contextlib.contextmanager
def failing(futures: Sequence[Future[Any]]) -> Iterator[None]:
    """Let futures have the error of the block."""
    try:
        yield
    except Exception as error:  # whoever waits for a call must hear of it
        for future in futures:
            if not future.done():
                future.set_exception(error)


def asked(*command: str, text: str = "") -> tuple[int, str, str]:
    """Status, output and errors of a command of the cluster; Ctrl-C ends no submission half-way."""
    apart = command[0] == "sbatch"
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, start_new_session=apart, timeout=3 * WAIT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, "", str(error)
    return done.returncode, done.stdout, done.stderr.strip()


def listed(ended: threading.Event) -> dict[str, str] | None:
    """The tasks of this user that the queue has, and why each waits, :data:`RUNNING` if it does not; None if nothing answers until ``ended``.

    Raises
    ------
    RunError : the queue does not answer.
    """
    deadline = time.monotonic() + SILENCE
    while True:
        status, out, error = asked(*SQUEUE)
        if not status:
            return _tasks(out)
        if ended.wait(LOOK):
            return None
        if time.monotonic() > deadline:
            text = f"squeue does not answer: {error}. The runs continue; the same command follows them."
            raise RunError(text, QUEUE)


def _tasks(out: str) -> dict[str, str]:
    states = re.findall(r"^(\S+) (\S+) ?(.*)$", out, re.MULTILINE)
    # PD: it has not begun; None: the scheduler has not looked at it
    return {task: reason if state == "PD" and reason != "None" else RUNNING for task, state, reason in states}
