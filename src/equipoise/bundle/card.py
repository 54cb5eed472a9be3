"""The model card of a bundle (Mitchell et al. 2019), as Markdown with the header of the Hugging Face Hub, and as a page."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from equipoise.bundle.inputs import Inputs, Rows
from equipoise.metrics.calibration import Decision
from equipoise.metrics.classification import RATES
from equipoise.metrics.intervals import sizes_by, wilson
from equipoise.metrics.measures import ACCURACY, Measure, measures_of
from equipoise.privacy.suppression import WITHHELD, enough, in_words, text_of
from equipoise.records.history import History, worded
from equipoise.records.threshold import USES_GROUP
from equipoise.report import rates, sentences, thresholds
from equipoise.report.document import treated
from equipoise.report.formatting import PERCENT, Cell, Grid, interval, number, with_unit, without
from equipoise.report.holdings import size, unsaid
from equipoise.report.notes import repeated
from equipoise.report.page import Bullets, Code, Page, Section, Table, Text
from equipoise.report.statistics import Comparison
from equipoise.system.seals import typed
from equipoise.system.suggestions import some
from equipoise.system.text import plural

SOURCE = "The headings are those of Mitchell et al., Model Cards for Model Reporting, FAT* 2019."
LICENCES = re.compile(  # as the Hub calls those of data and models, huggingface.co/docs/hub/repositories-licenses
    r"apache-2\.0|mit|openrail|bsd(-[23]-clause)?|isc|unlicense|mpl-2\.0|epl-[12]\.0|eupl-1\.1|a?gpl-3\.0|gpl-2\.0|lgpl-(2\.1|3\.0)"
    r"|cc0-1\.0|cc-by-(2\.5|[234]\.0)|cc-by-sa-[34]\.0|cc-by-nd-4\.0|cc-by-nc(-sa)?-[234]\.0|cc-by-nc-nd-[34]\.0"
    r"|odc-by|odbl|pddl|c-uda|cdla-sharing-1\.0|cdla-permissive-[12]\.0|etalab-2\.0"
)
UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")  # JSON may have them, YAML may not
KINDS = {"table": "tabular", "numbers": "tabular", "images": "image"}  # of inputs, in the names of the Hub's tasks
NAMED = 30  # clients of which a card has a row each, columns that a sentence names


def measures(history: History) -> dict[str, Any]:
    """What one record says of the model, as JSON has it: no number about fewer samples than the run shows."""
    if not history.groups:
        return {}
    summary = history.summary(last=1)
    names = "avg std worst worst_group gap least_group small_groups failure group_fairness people"
    return {"sets": _by_set(history)} | {name: summary[name] for name in names.split() if summary.get(name)}


def _by_set(history: History) -> dict[str, dict[str, Any]]:
    """By test set its samples, and every measure as it is shown; of the accuracy also the 95 % interval (Wilson)."""
    scores, sets = history.records[-1].get("groups", {}), dict[str, dict[str, Any]]()
    for name in history.groups:
        score: Mapping[str, Any] = scores[name]
        recorded = [measure for measure in measures_of(history.meta) if score.get(measure.name) is not None]
        values = {measure.name: measure.scale * float(score[measure.name]) for measure in recorded}
        sets[name] = {"n": history.shown_sizes.get(name), **values}
        if ACCURACY.name in values and sets[name]["n"] is not None:  # which the interval would tell
            counts = score.get(RATES)
            size = sizes_by(counts)["accuracy"][0] if isinstance(counts, Mapping) else history.sizes[name]
            sets[name]["interval"] = wilson(float(score[ACCURACY.name]), size).percent
    return sets


def _yaml(value: Any) -> str:
    """A value on one line of YAML, which reads JSON of printable text: nothing in it can begin another key."""
    return UNPRINTABLE.sub(lambda sign: f"\\u{ord(sign[0]):04x}", json.dumps(value, ensure_ascii=False))


@dataclass(frozen=True)
class Card:
    """What a reader must know of a model.

    Parameters
    ----------
    name : of the model.
    about : the content of ``bundle.json``.
    history : one record: the model on the test sets.
    inputs : what it takes.
    """

    name: str
    about: Mapping[str, Any]
    history: History
    inputs: Inputs

    def markdown(self) -> str:
        """The card as ``README.md``."""
        header = [f"{key}: {_yaml(value)}" for key, value in self.header.items()]
        return "\n".join(["---", *header, "---", "", self.page.markdown()])

    @property
    def page(self) -> Page:
        """The card: how good the model is, then what it is for, who is in the data, and how it was made."""
        return Page(
            self.name, "Model card", headline=self.headline, first=[Text(self.summary)], sections=self.sections, footer=SOURCE, narrow=True,
        )  # fmt: skip

    @property
    def headline(self) -> str:
        """What it reaches, and where the least; or that it is of no use, or was not tested."""
        reached, history = self.about["measures"], self.history
        if not reached.get("sets"):
            return "It was not tested."
        if failure := history.failure(1):
            return f"The model is of no use: {failure}."
        if "avg" not in reached:
            return ""
        text = f"It reaches {sentences.reaching(reached['avg'], history.main)}"
        if len(reached["sets"]) == 1 or "worst" not in reached:
            return f"{text}{' accuracy' * (history.main == ACCURACY)}."
        where = f", {self._called(reached['worst_group'])}" if reached.get("worst_group") else ""
        return f"{text} on average over {len(reached['sets'])} test sets, and {with_unit(reached['worst'], history.main)} on the worst{where}."

    @property
    def code(self) -> list[str]:
        """How the model is used in Python."""
        source = {"table": "table.csv", "numbers": "x.npy", "images": "folder"}[self.about["inputs"]["kind"]]
        by = (self.about["decision"] or {}).get("attribute", "")
        groups = ", groups=[...]" * bool(by and not self.about["decision"]["column"])
        load = ["import equipoise as eq", "", f"model = eq.load({json.dumps(self.name, ensure_ascii=False)})"]
        return [*load, f'print(model.predict("{source}"{groups}))']

    @property
    def header(self) -> dict[str, Any]:
        """The metadata that the Hub reads."""
        about, kind = self.about, KINDS[self.about["inputs"]["kind"]]
        task = f"{kind}-{about['task']['name']}"
        tags = ["equipoise", "federated-learning", "fairness", task]
        license = about["license"]
        hub = LICENCES.fullmatch(license.lower())
        named = {"license": license.lower()} if hub else {"license": "other", "license_name": license}
        results, metrics = list[dict[str, Any]](), dict[str, None]()
        for name, scores in about["measures"].get("sets", {}).items():
            finite = {key: x for key, x in scores.items() if key not in ("n", "interval") and math.isfinite(x)}
            metrics |= dict.fromkeys(finite)
            values = [{"type": key, "name": key, "value": value} for key, value in finite.items()]
            dataset = {"name": name, "type": about["data"].get("scenario") or "own"}
            results.append({"task": {"type": task}, "dataset": dataset, "metrics": values})
        index = {"metrics": [*metrics], "model-index": [{"name": self.name, "results": results}]} if metrics else {}
        source = about["data"].get("source", "").partition(":")[2].split("/")
        sets_of_hub = {"datasets": ["/".join(source[:2])]} if len(source) > 1 else {}
        first = {**(named if license else {}), "library_name": "equipoise", "pipeline_tag": task, "tags": tags}
        return {**first, **sets_of_hub, **index}

    @property
    def summary(self) -> str:
        """What the model is, in a sentence or two."""
        about, names = self.about, self.about["classes"]
        unit = about["task"].get("unit")
        target = f"one of {len(names)} classes ({some(names)})" if names else f"a number{f' in {unit}' if unit else ''}"
        whose = "one model for all clients"
        if client := about["client"]:
            owner = "the model that the site {} predicts with" if self._at_site else "the own model of the client {}"
            whose = owner.format(client)
        return f"A model that predicts {target}, trained by federated learning with {about['method']}. It is {whose}."

    @property
    def _at_site(self) -> bool:
        """Whether a site made it, which knows its own samples only."""
        return bool(self.about["client"]) and self.about["data"].get("scenario") == "sites"

    @cached_property
    def sections(self) -> list[Section]:
        """All sections."""
        return [
            *self._rates(),
            *self._chosen(),
            Section("use", "Intended use", [*map(Text, self._use())]),
            self._people(),
            Section("limits", "What this cannot show", [Bullets([*self._limits()])]),
            Section("made", "How it was made", [Bullets([*self._making()])]),
            Section("contact", "Whom to ask", [Text(self.about["contact"] or "Not stated.")]),
            Section("predict", "How to predict", [Code(self.code, "python")]),
        ]

    def _use(self) -> Iterator[str]:
        unstated = "Whoever exported this model did not say what it is for (--use)"
        yield self.about["use"] or f"{unstated}. Do not use it before you have asked them."
        yield "It was judged on the test samples below and on no others: for other people, places or times measure it again first."

    def _people(self) -> Section:
        """The data, and who is in them."""
        holdings = self.history.meta.get("holdings") or {}
        clients, least, classes = holdings.get("clients", ()), self.history.least_group, self.about["classes"]
        unshown = unsaid(clients, least)

        def counts(client: Mapping[str, Any]) -> tuple[Cell, ...]:
            """Samples, and those of each class; none of these where one is so small that the others would tell it."""
            of_class = (client["counts"] or ())[: len(classes)]
            people = client.get("people_of_class") or of_class
            few = client["name"] in unshown or any(n > 0 and not enough(n, least) for n in people)
            return Cell(size(client, unshown, least)), *(Cell(text_of(None if few else n, least)) for n in of_class)

        rows = tuple((client["name"], counts(client)) for client in clients[:NAMED])
        counted = all(len(cells) == len(classes) + 1 for _, cells in rows)
        titles = ("samples", *classes) if counted else ("samples",)
        grid = Grid(titles, tuple((name, cells[: len(titles)]) for name, cells in rows)) if rows else None
        total = in_words(sum(client["size"] for client in clients), least)
        text = [self._learnt_from(total, len(clients))] * bool(clients)
        more = [f"And {len(clients) - NAMED} clients more."] * (len(clients) > NAMED)
        if grid is not None and any(cell.mean == WITHHELD for _, cells in grid.rows for cell in cells):
            more.append(f"{WITHHELD}: a count of fewer than {least} would be this one, or follow from it and others.")
        if names := self.inputs.names:
            text.append(f"It takes {plural(len(names), 'column')}: {some(names, NAMED)}.")
        if isinstance(self.inputs, Rows) and (left := self.inputs.coder.schema.left_out):
            text.append(f"It does not use {some([f'{name} ({why})' for name, why in left.items()], NAMED)}.")
        licence, sha = self.about["license"], self.about["data"].get("sha256")
        more.append(f"Licence: {licence}." if licence else "The licence of the data was not stated (--license).")
        more += [f"SHA-256 of the data: {sha}."] * bool(sha)
        table = [Table(grid, head="Client")] if grid else []
        return Section("people", "Data, and who is in them", [*map(Text, text), *table, Bullets(more)])

    def _learnt_from(self, total: str, n_clients: int) -> str:
        """Whose samples it learnt from; those of clients that never trained stay in the total, which would else tell hidden counts."""
        absent = self.history.untrained
        whose = f"{self.about['client']}, and of other sites, of which nothing is known here" if self._at_site else ""
        whose = whose or plural(n_clients, "client")
        whose += f"; {some(absent)} trained in no round" * bool(absent)
        return f"It {'was given' if absent else 'learnt from'} {total} training samples of {whose}."

    def _rates(self) -> Iterator[Section]:
        """How good it is, and for whom."""
        history, sets = self.history, self.about["measures"].get("sets")
        if not sets:
            yield Section("good", "How good it is, and for whom", [Text("It was not tested.")])
            return
        named = [each for each in measures_of(history.meta) if any(each.name in scores for scores in sets.values())]
        rows = []
        for name, scores in sets.items():
            n = Cell(text_of(scores["n"], history.least_group))
            rows.append((self._called(name), (n, *(_cell(scores, measure) for measure in named))))
        grid = Grid(("n", *(measure.axis(measure.title) for measure in named)), tuple(rows))
        brackets = f" In brackets: 95{PERCENT} interval over them (Wilson)." * (history.main == ACCURACY)
        below = [f"n: {history.counted}.{brackets}"]
        if small := history.small_groups:
            below.append(f"Of fewer than {history.least_group} {history.counted} nothing is shown: {some([*small])}.")
        first = [f"The model is of no use: {history.failure(1)}."] * bool(history.failure(1))
        texts = [*map(Text, (*first, *self._positive()))]
        yield Section("good", "How good it is, and for whom", [Table(grid, head="Test set"), Bullets(below), *texts])
        comparison = Comparison.of([history])
        at_threshold = {division["by"] for division in (self.about["chosen"] or {}).get("divisions", ())}
        for treatment in treated(comparison.document):
            if at_threshold and treatment.attribute in {"", *at_threshold}:
                continue  # the same rates are under another heading
            parity, measure, attribute = treatment.parity, history.main, treatment.attribute
            explained = [*rates.explained(parity, measure), *sentences.unknown_values(treatment)]
            titles, by_group = rates.grid(parity, measure)
            named_rows = tuple((name if attribute else self._called(name), cells) for name, cells in by_group)
            table = Table(Grid(titles, named_rows), head=attribute or "Group")
            yield Section(treatment.rates, treatment.rates_heading(measure), [table, Bullets(explained)])

    def _chosen(self) -> Iterator[Section]:
        """What the threshold does, if it was chosen."""
        if chosen := self.about["chosen"]:
            below = Bullets(without(thresholds.explained(chosen), "probabilities"))  # of another table
            table = Table(thresholds.rates(chosen), head=thresholds.HEAD)
            yield Section("threshold", "At the threshold", [*map(Text, thresholds.sentences(chosen)), table, below])

    def _called(self, group: str) -> str:
        """A test set, with the name of the attribute where its values are the test sets: sex 1."""
        named = self.history.attributes.items()
        return next((f"{name} {group}" for name, values in named if {group, *self.history.groups} <= {*values}), group)

    def _positive(self) -> Iterator[str]:
        positive, threshold = self.about["positive"], self.about["threshold"]
        if positive is None:
            return
        reasons = {"given": "as was said", "names": "by the names of the classes"}
        assumed = "an assumption, as nothing says which it is"
        yield f"The positive class is {positive['name']}, {reasons.get(positive['why'], assumed)}."
        if len(self.about["classes"]) != 2:
            return
        decision = self.about["decision"] or {}
        if attribute := decision.get("attribute"):
            edges = zip(decision["groups"], decision["edges"], strict=False)
            edges_by_group = [f"{edge:.4g} for {worded(attribute, name)}" for name, edge in edges]
            yield f"It is predicted from a probability on that depends on {attribute}: {some(edges_by_group, NAMED)}; {threshold:.4g} where it is not known."
        elif threshold != 0.5:
            yield f"Threshold {threshold:.4g}: it is predicted from a probability of {threshold:.4g} on."
        else:
            yield "Threshold 0.5: the more probable class is predicted."
        if attribute and self.about["chosen"] is None:  # the method decides so
            yield USES_GROUP.format(attribute)
        elif (by := self.history.meta.get("decides")) is not None and threshold != 0.5:
            yield f"It replaces the decisions that {self.about['method']} makes{f' by {by}' * bool(by)}."
        if decision:
            yield "The numbers of this card are those of these decisions."
        yield from self._recalibrated()

    def _recalibrated(self) -> Iterator[str]:
        made = self.about["recalibration"]
        if made is None:
            return
        decision = typed(Decision, self.about["decision"])
        edges = [f"{edge:.4g} is {number(float(decision.shown(edge)), 4)}" for edge in dict.fromkeys(decision.edges)]
        after = "The class with the larger one is predicted."
        if edges:
            after = f"Thresholds are on the probabilities before that; after it, {some(edges, NAMED)}."
        yield f"Its probabilities are recalibrated ({made['kind']}), by {made['n']:,} validation rows. {after}"
        if made["brier"] is not None:
            then = made["before"]
            brier = f"a Brier score, from 0 to 2, of {then['brier']:.3f} into {made['brier']:.3f}"
            error = f"an expected calibration error of {then['ece']:.3f} into {made['ece']:.3f}"
            yield f"On test rows that turns {brier}, and {error}."

    def _limits(self) -> Iterator[str]:
        if len(self.history.groups) > 1 or self.history.attributes:
            advice = ": read the intervals" * (self.history.main == ACCURACY)
            yield f"Numbers differ between groups by chance where n is small{advice}."
        yield from repeated([self.history])
        if self.history.groups:
            yield from sentences.limits([self.history])
        if self._at_site:
            yield f"The numbers are about test samples of {self.about['client']} and of no other site."
        elif self.about["client"]:
            yield f"The numbers are those of the model of {self.about['client']} on all test sets, also those of other clients."
        yield "Groups that the data do not name were not looked at, and nothing here says why groups differ."

    def _making(self) -> Iterator[str]:
        about = self.about
        yield f"Method: {about['method']}, seed {about['seed']}, model after round {about['round'] + 1} of {about['rounds']}."
        if text := self.history.meta.get("in_force"):
            yield f"Hyper-parameters in force: {text}."
        recipe = about["network"] or {}
        options = [f"{key}={value}" for key, value in recipe.items() if key not in ("name", "in_shape", "n_classes")]
        name = recipe.get("name", "of the user's own, as a graph of ONNX") + f"({', '.join(options)})" * bool(options)
        yield f"Network: {name}, {about['parameters']:,} trainable parameters."
        if "schema" in about["inputs"]:
            yield f"SHA-256 of the schema of the table, which says how columns become inputs: {about['inputs']['schema']}."
        yield f"Versions: {', '.join(f'{name} {version}' for name, version in about['versions'].items())}."
        yield "The SHA-256 of every file is in bundle.json; a bundle whose weights, schema or description were edited is refused."


def _cell(scores: Mapping[str, Any], measure: Measure) -> Cell:
    digits = 1 if measure.unit == "%" else measure.digits
    ends = scores.get("interval") if measure == ACCURACY else None
    return Cell(number(scores.get(measure.name), digits), ends=interval(ends, digits))
