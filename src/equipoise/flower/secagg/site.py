"""What a site does in a masked round: it trains as usual, and only a masked vector leaves it.

The server sends the same to every site: a message to train by, and one for the sum. What differs from site to site (its data, state,
key and memory) is at the site. Masks depend on both messages, and on what the site trained by.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.core.rule import Cohort, Rule, overrides
from equipoise.engines.job import Job
from equipoise.federation.fingerprint import digest, structure
from equipoise.federation.method import Method, MethodError
from equipoise.federation.trial import Trial
from equipoise.flower.codec import Parcel, changed, hiding, packed
from equipoise.flower.secagg import sums
from equipoise.flower.secagg.masks import MaskError, comparison, model_digest, public_key, sha256, transcript
from equipoise.flower.secagg.memory import SiteMemory, change_memory, read_memory, read_peers
from equipoise.flower.secagg.sums import MaskedVector, SumRequest
from equipoise.flower.settings import ON_SERVER
from equipoise.flower.site import questions
from equipoise.flower.site.site import Site, SiteError, TrainingError, job_of, train
from equipoise.methods import METHODS
from equipoise.system import environment, own_code, tensor_files
from equipoise.system.files import locked, make_private

log = logging.getLogger(__name__)

LEAST_SITES, MOST_WEIGHT = 3, 0.75  # of a sum that a site takes part in, unless its node config says otherwise
OF_SITE = ("ids", "states", "data", "secret")  # of a job, what each site has of its own
LATER = {
    name.replace("_", "-") for name in ("rounds", *ON_SERVER)
}  # what of a run's configuration may change when it goes on


def answer(site: Site, kind: str, asked: Parcel) -> Parcel:
    """What the site answers to a message, one of :data:`KINDS` or any other.

    The site's ``node_config`` may have ``peers``, a file ``{site: public key}`` that did not come from the server; ``least-sites``,
    how many sites a sum must have for this one to take part (3); ``most-weight``, how much of the sum's weight its update may have (0.75); and
    ``secure``, true if only masked vectors may be sent, and the few numbers of :mod:`equipoise.flower.site.questions`.

    Raises
    ------
    SiteError : the site refuses, in words that may leave it. Whatever :meth:`Site.answer` raises.
    """
    if (
        kind not in KINDS
        and site.node_config.get("secure")
        and (kind.startswith("train") or kind == "evaluate.validation")
    ):
        raise SiteError("refuses: it takes part in masked sums only")
    if kind not in KINDS and not site.guarded:
        return site.answer(kind, asked)
    make_private(site.store.directory)
    # two at once would both read the earlier memory
    with locked(site.store.directory / "answers.lock", wait=True, private=True):
        if kind not in KINDS:
            reply = questions.answer(site, kind, asked)
            site.keep_base(asked)
            return reply
        try:
            return KINDS[kind](site, asked)
        except (MaskError, MethodError) as error:
            raise SiteError(f"refuses: {str(error).removesuffix('.')}") from None


def _introduce(site: Site, asked: Parcel) -> Parcel:
    memory = read_memory(_path(site))
    key = public_key(memory.key)
    if not memory.keys:
        log.warning("%s: its public key for masked sums is %s", site.trial.names[0], key)
    return Parcel({"key": key})


def _train(site: Site, asked: Parcel) -> Parcel:
    """Train, and keep the update at the site, under the transcript of the message and the hash of what was used.

    The message has the whole model, and nothing of it is stored before the training.
    """
    name, fields = site.trial.names[0], asked.fields
    match fields:
        case {"t": int(t), "rounds": int(), "model": {}, "clients": dict(clients)} if (
            isinstance(clients.get(name), list) and not fields["model"] and asked.part("model").keys() == {"values"}
        ):
            (peers, least), (client, *receipt) = _limits(site), clients[name]
        case _:
            raise MaskError(
                f"{name} is not among the clients of this message, or its round or its whole model is missing."
            )
    sums.check_least(len(clients), least, name)
    if strange := {*clients} - {name, *(clients if peers is None else peers)}:
        raise MaskError(f"The key of {min(strange)} is missing in the file of peers of {name}. Nothing was sent.")
    training = transcript({**fields, "experiment": dict(site.experiment)}, asked.tensors)
    memory = change_memory(_path(site), lambda memory: _pinned(site, memory))
    sums.check_round(memory, t, training, None, name)
    if (kept := _kept(site, training)) is not None:
        return Parcel({"receipt": kept.receipt})
    if memory.opened is not None and memory.opened.training == training:
        # noise would be drawn again, and cancel over many answers
        raise MaskError(f"{name} has unmasked round {t}, and no longer has its update.")
    sums.check_receipt(memory, receipt, name)
    parcel = site.here(Parcel({**fields, "client": client, "receipt": receipt}, asked.tensors))
    job, own = job_of(site, parcel)
    public = site._public(job.received[0]).cpu().clone()
    questions.bind(site, public, parcel)
    sums.check_model(memory, model := model_digest(public), t, name)
    code = used(site, job)
    try:
        clear = train(site, parcel.fields, job, own)
    except TrainingError as error:
        log.error("training failed, and the server is not told why: %s", error)
        raise SiteError(f"has no usable update of round {t}; its own log says more") from None
    update = changed({key: x.cpu() for key, x in clear.part("model").items()}, public, public) - public
    about = [training, t, model, code, transcript(site.experiment), clear.fields["receipt"]]
    facts = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
    tensor_files.write(_cache(site), {"facts": facts, "update": update, **clear.part("reports")}, private=True)
    return Parcel({"receipt": clear.fields["receipt"], "seconds": clear.fields["seconds"]})


def _pinned(site: Site, memory: SiteMemory) -> tuple[SiteMemory, SiteMemory]:
    """The memory with the run's configuration, which must stay what it was at first sight.

    Raises
    ------
    MaskError : it has changed.
    """
    run = transcript({key: x for key, x in site.run_config.items() if key not in LATER})
    if memory.run not in ("", run):
        raise MaskError(
            f"The configuration of the run is not the one that {site.trial.names[0]} saw first. Start a new experiment for another one."
        )
    return (pinned := replace(memory, run=run)), pinned


def used(site: Site, job: Job) -> str:
    """The hash of all that a site trains by, whichever way it came, but for what is the site's own.

    Every field of the job counts that is not one of :data:`OF_SITE`, with the experiment, the run's configuration, and the code.
    """
    trial, inputs = site.trial, {f.name: getattr(job, f.name) for f in fields_of(job) if f.name not in OF_SITE}
    code = own_code.defining(*job.model.net.modules(), *job.rules, job.model.task)
    inputs["model"] = [*structure(job.model, trial.neurons).values(), str(job.model.task), code, environment.code()]
    inputs |= {"settings": job.settings.decisive, "neurons": job.neurons is None}
    inputs["received"] = model_digest(site._public(job.received[0]))
    return sha256(json.dumps([dict(site.experiment), dict(site.run_config), _content(inputs)], sort_keys=True).encode())


def _content(x: Any) -> Any:
    """What JSON has of the fields of a job: of tensors their hashes."""
    if isinstance(x, Tensor):
        return [str(x.dtype), list(x.shape), digest(x)]
    if isinstance(x, Mapping):
        return {str(key): _content(value) for key, value in x.items()}
    return [*map(_content, x)] if isinstance(x, list | tuple) else repr(x)


class Kept(NamedTuple):
    """What the site keeps of its last training: its update and reports, the hash of what it used, and the receipt of its state."""

    tensors: Mapping[str, Tensor]
    t: int
    model: str
    used: str
    setting: str
    receipt: list[Any]


def _kept(site: Site, training: str) -> Kept | None:
    """What is kept of the training with a transcript; None if it is not the last one.

    Raises
    ------
    MaskError : it was a different experiment, by its description.
    """
    try:
        tensors = tensor_files.read(_cache(site))
    except (FileNotFoundError, tensor_files.DamagedError):
        return None
    trained, *facts = json.loads(tensors.pop("facts").numpy().tobytes())
    if trained != training:
        return None
    if (kept := Kept(tensors, *facts)).setting != transcript(site.experiment):
        raise MaskError("The description of the experiment is not that of the training.")
    return kept


def _sum(site: Site, asked: Parcel) -> Parcel:
    """The site's masked vector: its update times its weight, and its reports."""
    request, name = SumRequest.read(asked.fields, site.experiment), site.trial.names[0]
    if (kept := _kept(site, request.training)) is None or kept.t != request.round:
        raise MaskError(f"{name} has no update of this training and round.")
    (peers, least), most = _limits(site), float(site.node_config.get("most-weight", MOST_WEIGHT))

    def made(memory: SiteMemory) -> tuple[SiteMemory, MaskedVector]:
        memory = _pinned(site, memory)[0]
        checked = sums.check_sum(memory, request, name, int(site.trial.setup.sizes[0]), peers, least)
        if (checked.keys, checked.sizes) != (memory.keys, memory.sizes):  # a warning is what Flower's processes show
            log.warning("%s: %s", name, comparison(checked.keys, checked.sizes))
        sums.check_model(checked, kept.model, request.round, name)
        require_own_weights(site.trial.method)
        w = own_weights(site.trial, request.members)
        if w[name] > most * sum(w.values()):
            raise MaskError(  # without the number, which would reveal it
                f"The update of {name} would be more than {most:.0%} of the sum, which would reveal it (most-weight in its node-config)."
            )
        reports = {key.removeprefix("reports/"): x for key, x in no_reports(site.trial)[0].items()}
        said = [kept.tensors.get(key, zero).flatten().double() for key, zero in reports.items()]
        values = torch.cat([w[name] / sums.unit(w) * kept.tensors["update"].double(), *said])
        return sums.masked_vector(checked, request, name, values, kept.model, kept.used, kept.receipt)

    sent = change_memory(_path(site), made)
    questions.note_round(site, kept.t, kept.receipt)
    return Parcel({"shares": sent.shares, "seed": sent.seed}, {"masked": sent.vector})


def _limits(site: Site) -> tuple[dict[str, str] | None, int]:
    """The keys that may be in a sum, None for any, and its fewest sites.

    A report of the length of an update is a second sum of nearly the same numbers, of which one more site must be unknown.
    """
    own, reports = site.node_config, sum(x.numel() for x in no_reports(site.trial)[0].values())
    peers = read_peers(Path(str(own["peers"])).expanduser()) if "peers" in own else None
    return peers, int(own.get("least-sites", LEAST_SITES)) + reports // site.trial.model.n_params


def _unmask(site: Site, asked: Parcel) -> Parcel:
    name, hashed = site.trial.names[0], str(asked.fields["told"])
    seed = change_memory(_path(site), lambda memory: sums.own_seed(memory, hashed, name))
    return Parcel({"seed": seed.hex()})


def _recover(site: Site, asked: Parcel) -> Parcel:
    """Help to unmask a sum of which sites dropped out."""
    name, hashed, hidden = site.trial.names[0], str(asked.fields["told"]), asked.fields["shares"]
    shares = change_memory(_path(site), lambda memory: sums.shares_of(memory, hashed, name, hidden))
    return Parcel({"shares": {other: share.hex() for other, share in shares.items()}})


KINDS: dict[str, Callable[[Site, Parcel], Parcel]] = {
    "query.keys": _introduce,
    "train.masked": _train,
    "train.sum": _sum,
    "query.unmask": _unmask,
    "query.recover": _recover,
}


def require_own_weights(method: Method) -> None:
    """Require that the server of a method needs only a sum, in which each site's weight follows from its own samples.

    Raises
    ------
    MethodError : it does not.
    """
    for rule, part in zip(method.rules, method.parts, strict=True):
        if why := problem(rule):
            can = [name for name in METHODS if not any(problem(r()) for r in METHODS[name].rules)]
            raise MethodError(
                f"secure=true: {part} cannot be used, because {why}, and the server sees sums only. Usable methods, "
                f"also in sums: {', '.join(can)}. Choose among them, or set secure=false."
            )


def problem(rule: Rule) -> str:
    """Why a rule cannot be used if the server sees sums only; empty if it can."""
    if rule.declared.sees == "nothing":
        return "nothing is summed in it"
    if rule.declared.sees == "scalars+sum":
        return (
            "it weighs a site by the reports of others, and a server that sends a site such a weight learns its update"
        )
    if rule.declared.sees != "sum":
        return "the server must see what each site sends"
    if rule.declared.reports and not overrides(rule, "no_report"):
        return f"every site reports {rule.declared.reports.removeprefix('its ')} to the server, and no_report does not define its form"
    return ""


def no_reports(trial: Trial) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Reports of zeros that are summed in addition to the updates, and the whole length of those without private coordinates."""
    reports = [rule.no_report(trial.setup) for rule in trial.method.rules]
    return packed("reports", reports, hiding(trial.private, trial.model.n_params))


def own_weights(trial: Trial, sizes: Mapping[str, int]) -> dict[str, float]:
    """The factor of each site's update: its samples, or one; no number of a different site or of the server.

    Raises
    ------
    MethodError : the rules weigh differently, or do more than weigh.
    """
    n, P, vector = len(sizes), trial.model.n_params, trial.setup.initial
    samples = torch.tensor([float(size) for size in sizes.values()], dtype=torch.float64)
    # which class is positive is the server's choice, on which no weight of a site depends
    setup, ids = replace(trial.setup, sizes=samples, positive=0), torch.arange(n)
    zero = torch.zeros_like(vector).expand(n, -1)
    cohort = Cohort(
        t=0,
        rounds=1,
        n_clients=n,
        theta=vector[:P],
        updates=zero[:, :P],
        ids=ids,
        sizes=samples,
        weights=samples / samples.sum(),
        layout=trial.model.layout,
        buffer_updates=zero[:, P:],
        received=vector.expand(n, -1),
        kept=vector.expand(n, -1),
        seed=trial.settings.seed,
    )
    for rule in trial.method.rules:
        reports = {key: x.expand(n, *x.shape) for key, x in rule.no_report(setup).items()}
        _, cohort = rule.aggregate(rule.server_state(setup), replace(cohort, reports=reports))
    if any(x is not None for x in (cohort.coefficients, cohort.mask, cohort.buffer_mask)):
        raise MethodError("secure=true: a rule of the method does more than weigh the updates. Set secure=false.")
    for own in (samples, torch.ones_like(samples)):
        if torch.allclose(cohort.weights.double(), own / own.sum(), rtol=1e-6, atol=0):
            return dict(zip(sizes, own.tolist(), strict=True))
    raise MethodError("secure=true: the method weighs a site by more than its own samples. Set secure=false.")


def _path(site: Site) -> Path:
    return site.store.directory / "masks.json"


def _cache(site: Site) -> Path:
    return site.store.directory / "update.safetensors"
