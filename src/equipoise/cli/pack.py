"""The commands ``equipoise pack`` and ``equipoise verify``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.cli.console import err, print_json, say
from equipoise.cli.options import JOBS, Json, Run, option
from equipoise.system import errors, suggestions
from equipoise.system.text import plural

if TYPE_CHECKING:
    from equipoise.runs.pack import Again


def pack(
    directory: Run,
    output: Path | None = option(None, "The file to write [default: NAME.zip].", "--output -o", metavar="ZIP"),
    with_data: bool = option(False, "Take your data and weights in, too. Without it only their hashes are."),
    include: list[Path] | None = option(
        None, "A file or folder that your code reads, to be taken in. Repeatable.", metavar="PATH"
    ),
) -> Iterator[object]:
    """Write a run or a comparison into one zip file: settings, code, records, report, versions, hashes, `rerun.sh`.

    It contains your code, with its imports from the same folder, but not your data, unless you ask for it.
    """
    from equipoise.report.formatting import size
    from equipoise.runs.pack import pack as write

    path = output or Path(f"{directory.absolute().name}.zip")
    if path.exists() and not path.is_file():
        raise ValueError(f"--output {path} is a folder. Give the name of a file.")
    about = write(directory, path, with_data=with_data, include=include or ())
    yield {"file": path.as_posix(), **about}
    for name, listed in about["files"].items():
        say(f"  {listed['kind']:<9} {size(listed['bytes']):>9}  {name}")
    for run in about["runs"]:
        if (data := run["data"]) and not data["inside"]:
            say(
                f"{run['path']}: its data ({data['name']}) are not in the file; with --data PATH they can be given to verify."
            )
        if not run["again"]:
            say(
                f"{run['path']}: it comes from a Python program, which is unknown here, so it can be checked but not repeated."
            )
    say(f"{path}: {plural(len(about['runs']), 'run')}, {size(about['bytes'])}, SHA-256 {about['sha256']}")


def verify(
    file: Path = option(..., "What `equipoise pack` has written.", "ZIP"),
    run_code: bool = option(
        False,
        "Make the runs again and compare. This runs the code in the file, with your rights; without it only hashes are checked.",
    ),
    data: str | None = option(None, "Where the data are, if they are not in the file.", metavar="PATH"),
    jobs: int | None = JOBS,
    json_: Json = False,
) -> None:
    """Check the hashes of a packed run; with --run-code, make it again and say whether the numbers are the same."""
    from equipoise.runs import pack as packs

    suggestions.require_use({} if run_code else {"--data": data, "--jobs": jobs}, without="--run-code")
    with tempfile.TemporaryDirectory(prefix="equipoise-verify-") as temporary:
        folder, again = Path(temporary).resolve() / "packed", Path(temporary).resolve() / "again"
        for each in (folder, again):
            each.mkdir()
        about = packs.opened(file, folder)
        code, differs = packs.code(about), list(packs.unlike(about))
        document: dict[str, Any] = {"file": file.as_posix(), "files": len(about["files"]), "hashes": "right"}
        document |= {"code": code, "unlike": differs}
        if not json_:
            say(f"{file}: the hashes of all {len(about['files'])} files are right, and the records are whole.")
            _show_code(code, run_code)
        elif not run_code:
            print_json({**document, "runs": None})
        if not run_code:
            return
        with err.status("Making the runs again ..."):
            results = packs.rerun(about, folder, again, data=data, jobs=jobs or 1)
    same = all(result.same for result in results)
    if json_:
        print_json({**document, "runs": [asdict(result) for result in results], "same": same})
    else:
        for result in results:
            say(f"{result.path}: {_outcome(result)}")
        for path in (run["path"] for run in about["runs"] if not run["again"]):
            say(f"{path}: made by a program in Python, which is not known here; only its hashes were checked.")
    if not same:
        raise errors.RunError(_advice(results, differs))


def _show_code(code: Mapping[str, str], run_code: bool) -> None:
    """Print the files of code with their hashes, and whether they are run."""
    title = "Code that is run:" if run_code else "Code that would be run:"
    say(title if code else "No code is in it.")
    for name, digest in code.items():
        say(f"  {digest}  {name}")
    if not run_code:
        say("Nothing was run. To make the runs again, which runs this code with your rights: --run-code")


def _outcome(result: Again) -> str:
    if result.same:
        return "the same, bit for bit"
    if result.failed:
        return f"failed: {result.failed}"
    difference, how = result.difference, []
    assert difference is not None
    if difference.where:
        how.append(f"the largest difference is {difference.largest:.3g}, in {difference.where}")
    if difference.other:
        how.append(f"{difference.other} is not the same")
    return f"not the same: {'; '.join(how)}"


def _advice(results: list[Again], differs: list[str]) -> str:
    n = sum(not result.same for result in results)
    text = f"{n} of {len(results)} runs did not come out the same"
    if not differs:
        return f"{text}, with the same versions on the same kind of processor."
    return (
        f"{text}. Another processor or version rounds otherwise, and small differences may grow with the rounds. Here: {'; '.join(differs)}. "
        "For the same versions: pip install -c constraints.txt, with the file in the zip."
    )
