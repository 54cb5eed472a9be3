"""The sites of a deployed run, as those see them who keep it running."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from equipoise.metrics.measures import main_in
from equipoise.records.record import Record

Records = Sequence[Record]
ESCAPED = {ord("\\"): r"\\", ord('"'): r"\"", ord("\n"): r"\n"}  # in a label of Prometheus


class AtSite(NamedTuple):
    """What records say of a site: bytes down and up in all, why it was left out each time, and of every round it answered its
    number, the seconds of training, as the site says, and those from asking to answer.
    """

    name: str
    sent: list[int]
    left_out: list[str]
    answers: list[tuple[int, float | None, float | None]]


def at_sites(records: Records, names: Sequence[str]) -> list[AtSite]:
    """The sites of a run; none if its records have no ``times``, as clients of a simulation are no sites."""
    sites = [AtSite(name, [0, 0], [], []) for name in names if any("times" in record for record in records)]
    for record in records if sites else ():
        unknown = [None] * len(record["ids"])
        times = record.get("times", {"site": unknown, "answered": unknown})
        for m, training, answered in zip(record["ids"], times["site"], times["answered"], strict=True):
            sites[m].answers.append((record["round"], training, answered))
        for counts in record.get("sent", {}).values():
            for site, *sent in zip(sites, counts["down"], counts["up"], strict=True):
                site.sent[:] = map(sum, zip(site.sent, sent, strict=True))
        for lost in record.get("quarantined", ()):
            sites[lost["client"]].left_out.append(str(lost["reason"]))
    return sites


def prometheus(records: Records, names: Sequence[str], rounds: int, experiment: str) -> str:
    """The state of a run in Prometheus' text format: ``records`` of ``rounds`` planned, and the ``names`` of the sites.

    What is not known has no line. All have the label
    ``experiment``, so that the files of several runs can be read together.
    """
    last, sites = records[-1], at_sites(records, names)
    answered = {site.name: site.answers[-1] for site in sites if site.answers}
    scores: Mapping[str, Any] = next((groups for record in reversed(records) if (groups := record.get("groups"))), {})
    main = main_in(next(iter(scores.values()), ()))
    within = f"in [{main.low:g}, {main.high:g}]" if main.unit else "in the unit of the target"
    gauges: list[tuple[str, str, str, Mapping[str, float | None]]] = [
        ("rounds_complete", "Rounds that are complete.", "", {"": last["round"] + 1}),
        ("rounds_planned", "Rounds that are planned.", "", {"": rounds}),
        ("round_seconds", "Seconds of the last round.", "", {"": last["seconds"]}),
        ("sites_known", "Sites of the run.", "", {"": len(names)}),
        ("sites_answered", "Sites whose answers counted in the last round.", "", {"": len(last["ids"])}),
        ("site_last_round", "Last round in which a site answered, from 1.", "site", {name: t + 1 for name, (t, _, _) in answered.items()}),
        ("site_training_seconds", "Seconds of its last training, as the site reports.", "site", {name: x for name, (_, x, _) in answered.items()}),
        ("site_answered_seconds", "Seconds from asking to its last answer.", "site", {name: x for name, (_, _, x) in answered.items()}),
        ("site_down_bytes", "Bytes of tensors sent to a site so far.", "site", {s.name: s.sent[0] for s in sites}),
        ("site_up_bytes", "Bytes of tensors received from a site so far.", "site", {s.name: s.sent[1] for s in sites}),
        ("site_left_out", "Rounds that a site was left out of, not connected ones too.", "site", {s.name: len(s.left_out) for s in sites}),
        (main.name, f"{main.title} in the last evaluation, {within}.", "group", {g: x.get(main.name) for g, x in scores.items()}),
        ("loss", "Loss of the task in the last evaluation; of classes in nats.", "group", {g: x.get("loss") for g, x in scores.items()}),
    ]  # fmt: skip
    lines = []
    for gauge, text, label, values in gauges:
        numbers = {name: float(x) for name, x in values.items() if x is not None}
        lines += [f"# HELP equipoise_{gauge} {text}", f"# TYPE equipoise_{gauge} gauge"] * bool(numbers)
        for name, x in numbers.items():
            labels = {"experiment": experiment} | ({label: name} if label else {})
            labels_text = ",".join(f'{key}="{value.translate(ESCAPED)}"' for key, value in labels.items())
            lines.append(f"equipoise_{gauge}{{{labels_text}}} {repr(x).replace('nan', 'NaN').replace('inf', 'Inf')}")
    return "\n".join([*lines, ""])
