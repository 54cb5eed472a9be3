"""What must agree between a checkpoint and the federation that continues from it, and between a server and its sites."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import chain

from torch import Tensor

from equipoise.core.draws import seeded
from equipoise.core.hidden_units import Neurons
from equipoise.core.model import Model
from equipoise.core.oracle import Oracle
from equipoise.core.settings import Settings
from equipoise.core.task import CLASSIFICATION
from equipoise.data.batch import Shape
from equipoise.data.samples import Absent, Samples, loaded
from equipoise.engines.job import Job
from equipoise.federation.inputs import named
from equipoise.federation.trial import Trial
from equipoise.records.identity import Difference, Identity
from equipoise.records.meta import Content
from equipoise.system import environment, own_code
from equipoise.system.tensor_files import as_bytes

Data = Samples | Absent
OF_CLIENT = ("ids", "states", "data", "secret")  # of a job, what each client has of its own


def structure(model: Model, neurons: Neurons | None) -> Content:
    """What of a network must agree wherever it is trained, in addition to its values."""
    units = None if neurons is None else [[g.name, list(g.rows), list(g.columns)] for g in neurons.groups]
    return {
        "parameters": {n: list(s) for n, s in zip(model.names, model.shapes, strict=True)},
        "fixed": hashlib.sha256(b"".join(map(as_bytes, model.fixed()))).hexdigest(),
        "hidden units": units,
    }


def agreement(trial: Trial, shape: Shape, stated: Content) -> dict[str, str]:
    """The :func:`code` of each aspect in which sites must agree, where it is known, and the version of Equipoise in words.

    Parameters
    ----------
    shape : of a sample.
    stated : ``features``, ``classes`` and what else a :class:`equipoise.flower.Task` states; None where it does not.
    """
    aspects, model = dict(stated), trial.model
    of_network = structure(model, trial.neurons).values()
    aspects["parameters"], aspects["frozen parameters"], aspects["hidden units"] = of_network
    aspects["own code"] = own_code.defining(*model.net.modules(), *trial.method.rules, model.task) or None
    of_sample = [*chain(*shape.values())] if isinstance(shape, dict) else [*shape]
    for what, sizes, whose in (("features", of_sample, "a sample"), ("classes", [trial.setup.n_classes], "the output")):
        names = aspects[what] = named(what, stated[what], what)
        if names is not None and (len(names) not in sizes or len(set(names)) < len(names)):
            fault = f"found {len(names)} names, {len(set(names))} of them different"
            raise ValueError(f"{what}: {whose} has the shape {list(sizes)}, so each needs a name of its own; {fault}.")
    try:
        codes = {what: code(x) for what, x in aspects.items() if x is not None}
    except (TypeError, ValueError) as error:
        kinds = "text, numbers, and lists and dictionaries of them; of an array give x.tolist()"
        raise TypeError(f"scaling must be {kinds}: {error}.") from None
    return codes | {"Equipoise version": environment.release(environment.code())}


def code(x: object) -> str:
    """Twelve digits of the SHA-256 of what JSON can hold; 1 and 1.0 are the same."""
    return _together([json.loads(json.dumps(x, allow_nan=False), parse_int=float)])[:12]


def job_content(job: Job, neurons: Neurons | None, public: Tensor) -> Content:
    """All that a client trains by, whichever way it came, for JSON: every field of the job that is not one of :data:`OF_CLIENT`, and the code.

    Parameters
    ----------
    neurons : of the trial.
    public : the model that it trains from, without private coordinates.
    """
    inputs = {f.name: getattr(job, f.name) for f in fields(job) if f.name not in OF_CLIENT}
    source = own_code.defining(*job.model.net.modules(), *job.rules, job.model.task)
    inputs["model"] = [*structure(job.model, neurons).values(), str(job.model.task), source, environment.code()]
    inputs |= {"settings": job.settings.decisive, "neurons": job.neurons is None, "received": public + 0.0}
    return {name: _plain(x) for name, x in inputs.items()}


def _plain(x: object) -> object:
    """A value for JSON: of tensors their hashes."""
    if isinstance(x, Tensor):
        return [str(x.dtype), list(x.shape), digest(x)]
    if isinstance(x, Mapping):
        return {str(key): _plain(value) for key, value in x.items()}
    return [*map(_plain, x)] if isinstance(x, list | tuple) else repr(x)


def agreed(sites: Mapping[str, Mapping[str, str]], server: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Who decides on each aspect, and its code: the server, or else most of the sites that state it, or the largest group of them."""
    decided = {what: ("the server", code) for what, code in server.items()}
    for what in dict.fromkeys(what for codes in sites.values() for what in codes if what not in server):
        stating = {name: codes[what] for name, codes in sites.items() if what in codes}
        most, n = Counter(stating.values()).most_common(1)[0]
        group = ", ".join(name for name, code in stating.items() if code == most)
        decided[what] = ("most sites" if 2 * n > len(stating) else group, most)
    return decided


def unlike(its: Mapping[str, str], agreed: Mapping[str, tuple[str, str]]) -> str:
    """In words, which codes of a site are not those agreed on; empty if all are. What it does not state is not compared."""
    pairs = ((what, *right) for what, right in agreed.items() if its.get(what, right[1]) != right[1])
    other = ", ".join(f"other {what} ({its[what]}) than {who} ({code})" for what, who, code in pairs)
    return f"has {other}" if other else ""


def contents(
    clients: Sequence[Data], tests: Mapping[str, Samples], groups: Sequence[str] | None, validation: Samples | None
) -> dict[str, str]:
    """Hashes of all data of a federation, by the keys of :data:`equipoise.records.identity.PARTS`.

    Of data in memory every byte counts, of images on disk their file and which of them are used. Of a streamed data set
    some samples spread over it count, those that are the same when read twice; of clients that are
    :class:`equipoise.Lazy` the first, and the sizes of the others.
    """
    clients = [*map(loaded, clients[:1]), *clients[1:]]
    every = (*clients, *(tests[name] for name in sorted(tests)), *([] if validation is None else [validation]))
    codes = [None if (s := data.s) is None else digest(s) for data in every]
    return {
        "inputs": _together(map(_content, clients)),
        "tests": _together(f"{name}: {_content(tests[name])}" for name in sorted(tests)),
        "groups": _together([] if groups is None else groups),
        "validation": "" if validation is None else _content(validation),
        "attributes": _together(codes) if any(codes) else "",
    }


def _together(parts: Iterable[object]) -> str:
    return hashlib.sha256(json.dumps(list(parts), sort_keys=True).encode()).hexdigest()


def _content(data: Data) -> str:
    """Hash of samples; the number of those of an absent client."""
    if isinstance(data, Absent):
        return str(data.size)
    total = hashlib.sha256()
    with seeded(0):  # a data set may draw random numbers
        for part in data.store.stored():
            total.update(part)
    return total.hexdigest()


def fingerprint(trial: Trial, data: Mapping[str, str]) -> Content:
    """What must agree for a checkpoint to be continued; ``data`` are the :func:`contents`."""
    method, settings, oracle = str(trial.method), trial.settings, trial.oracle
    method = own_code.by_content(method, own_code.hashes(method))
    drawn = {"method": method, "seed": settings.seed, "validation": settings.validation}
    clients = {"clients": len(trial.data), "sizes": [d.size for d in trial.data], "labels": trial.labels}
    of_server = None if oracle is None or not trial.method.needs_of_server else _validation(oracle)
    training: Content = {"server_validation": of_server, "solver": repr(trial.solver)}
    training |= {} if trial.model.task == CLASSIFICATION else {"task": str(trial.model.task)}
    training |= {**settings.decisive, "data": dict(data)}
    return {**drawn, **clients, **structure(trial.model, trial.neurons), **training}


def identity(fingerprint: Content) -> Identity:
    """What a run is by its fingerprint, which an earlier version may have written."""
    its = {"server_validation": fingerprint.get("validation"), **fingerprint}
    if "server_validation" not in fingerprint:  # of a version that called it otherwise
        its["validation"] = 0.0
    # of a version that took the same code in another folder for other code
    method = own_code.by_content(its["method"], its.pop("own code", {}))
    data = {"labels": its.pop("labels", None), **its.pop("data", {})}
    code = {"that of its method": method}
    return Identity({**its, "method": own_code.nameless(method)}, code, data)


def differences(its: Content, ours: Content) -> list[Difference]:
    """In what two fingerprints differ, the first of which may be of an earlier version."""
    return identity(its).differences(identity(ours), Settings().decisive)


def _validation(oracle: Oracle) -> str:
    shape_and_labels = oracle.source.shape_and_labels
    return str(int(oracle.source.sizes)) if shape_and_labels is None else digest(shape_and_labels[1])


def digest(x: Tensor) -> str:
    """SHA-256 of the bytes of a tensor, in hexadecimal."""
    return hashlib.sha256(as_bytes(x)).hexdigest()
