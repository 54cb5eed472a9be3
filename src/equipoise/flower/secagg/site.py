"""What a site does in a masked round, and what a guarded site answers in addition to training.

In a masked round a site trains as usual, and only a masked vector leaves it. The server sends the same to every site: a message to train
by, and one for the sum. What differs from site to site (its data, state, key and memory) is at the site. Masks depend on both messages, and
on what the site trained by.

A site is guarded if its node config has ``secure`` or ``max-epsilon``. Otherwise a server could learn its data from the scores of
models that it made for this. So the site answers ``evaluate`` once after each round in which it counted, under the method and the
settings of that round, with its own state of that round. In the next round it trains from the model that it measured, or not at
all. Numbers are counts, or rounded to :data:`equipoise.flower.site.site.DIGITS` digits after the point.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.federation import fingerprint, method
from equipoise.federation.trial import Trial, own_weights
from equipoise.flower.codec import CodecError, Parcel, changed, hiding, packed
from equipoise.flower.secagg import sums
from equipoise.flower.secagg.sums import MaskError, SiteMemory, change_memory, transcript
from equipoise.flower.settings import AppSettings
from equipoise.flower.site.site import KINDS as UNMASKED, Site, TrainingError, job_of, train
from equipoise.system import ranges, seals, tensor_files
from equipoise.system.errors import DamagedError, SiteError, refusal
from equipoise.system.files import locked, make_private, read_regular, write_atomically

log = logging.getLogger(__name__)

LEAST_SITES, MOST_WEIGHT = 3, 0.75  # of a sum that a site takes part in, unless its node config says otherwise
# of a run's configuration, which may change them
LATER = {name.replace("_", "-") for name in ("rounds", *ranges.marked(AppSettings, "operation"))}


def answer(site: Site, kind: str, asked: Parcel) -> Parcel:
    """What the site answers to a message, one of :data:`KINDS`.

    The site's ``node_config`` may have ``peers``, a file ``{site: public key}`` that did not come from the server; ``least-sites``,
    how many sites a sum must have for this one to take part (3); ``most-weight``, how much of the sum's weight its update may have (0.75); and
    ``secure``, true if only masked vectors may be sent, and the few numbers of a guarded site.

    Raises
    ------
    SiteError : the site refuses, in words that may leave it. Whatever :meth:`Site.answer` raises.
    """
    masked = kind not in UNMASKED
    if not masked and site.node_config.get("secure") and (kind.startswith("train") or kind == "evaluate.validation"):
        raise refusal("it takes part in masked sums only")
    if not masked and not site.guarded:
        return site.answer(kind, asked)
    make_private(site.store.directory)
    # two at once would both read the earlier memory
    with locked(site.store.directory / "answers.lock", wait=True, private=True):
        if not masked:
            reply = _guarded(site, kind, asked)
            site.keep_base(asked)
            return reply
        try:
            return KINDS[kind](site, asked)
        except (MaskError, method.MethodError) as error:
            raise refusal(str(error).removesuffix(".")) from None


# masked rounds
def _introduce(site: Site, asked: Parcel) -> Parcel:
    memory = sums.read_memory(_path(site))
    key = sums.public_key(memory.key)
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
            raise MaskError(f"{name} is not among the clients of this message, or its round or model is missing.")
    sums.check_least(len(clients), least, name)
    if strange := {*clients} - {name, *(clients if peers is None else peers)}:
        raise MaskError(f"The key of {min(strange)} is missing in the file of peers of {name}. Nothing was sent.")
    training = transcript({**fields, "experiment": dict(site.experiment)}, asked.tensors)
    memory = change_memory(_path(site), lambda memory: _pinned(site, memory))
    sums.check_round(memory, t, training, None, name)
    if (stored := _kept(site, training)) is not None:
        return Parcel({"receipt": stored.fields["receipt"]})
    if training in memory.models:  # noise would be drawn again, and cancel over many answers
        raise MaskError(f"{name} took part in a sum of round {t}, and no longer has its update.")
    sums.check_receipt(memory, receipt, name)
    parcel = site.here(Parcel({**fields, "client": client, "receipt": receipt}, asked.tensors))
    job, own = job_of(site, parcel)
    public = site._public(job.received[0]).cpu().clone()
    _bind(site, public, parcel)
    sums.check_model(memory, model := sums.model_digest(public), t, name)
    handed = fingerprint.job_content(job, site.trial.neurons, public)
    used = sums.sha256(json.dumps([dict(site.experiment), dict(site.run_config), handed], sort_keys=True).encode())
    try:
        clear = train(site, parcel.fields, job, own)
    except TrainingError as error:
        log.error("training failed, and the server is not told why: %s", error)
        raise SiteError(f"has no usable update of round {t}; its own log says more") from None
    update = changed({key: x.cpu() for key, x in clear.part("model").items()}, public, public) - public
    noted = {"training": training, "t": t, "model": model, "used": used, "receipt": clear.fields["receipt"]}
    text = json.dumps({**noted, "setting": transcript(site.experiment)})
    facts = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    tensor_files.write(_cache(site), {"noted": facts, "update": update, **clear.part("reports")}, private=True)
    return Parcel({"receipt": clear.fields["receipt"], "seconds": clear.fields["seconds"]})


def _pinned(site: Site, memory: SiteMemory) -> tuple[SiteMemory, SiteMemory]:
    """The memory with the run's configuration, which must stay what it was at first sight.

    Raises
    ------
    MaskError : it has changed.
    """
    run = transcript({key: x for key, x in site.run_config.items() if key not in LATER})
    if memory.run not in ("", run):
        raise MaskError("The run's configuration is not the one that it saw first. Start a new experiment.")
    return (pinned := replace(memory, run=run)), pinned


def _kept(site: Site, training: str) -> Parcel | None:
    """The update and reports of the training with a transcript, and what was noted of it; None if it is not the last one.

    Raises
    ------
    MaskError : it was a different experiment, by its description.
    """
    try:
        tensors = tensor_files.read(_cache(site))
    except (FileNotFoundError, DamagedError):
        return None
    noted = json.loads(tensors.pop("noted").numpy().tobytes())
    if noted["training"] != training:
        return None
    if noted["setting"] != transcript(site.experiment):
        raise MaskError("The description of the experiment is not that of the training.")
    return Parcel(noted, tensors)


def _sum(site: Site, asked: Parcel) -> Parcel:
    """The site's masked vector: its update times its weight, and its reports."""
    request, name = sums.SumRequest.read(asked.fields, site.experiment), site.trial.names[0]
    if (stored := _kept(site, request.training)) is None or stored.fields["t"] != request.round:
        raise MaskError(f"{name} has no update of this training and round.")
    (peers, least), most = _limits(site), float(site.node_config.get("most-weight", MOST_WEIGHT))

    def made(memory: SiteMemory) -> tuple[SiteMemory, sums.MaskedVector]:
        memory = _pinned(site, memory)[0]
        checked = sums.check_sum(memory, request, name, int(site.trial.setup.sizes[0]), peers, least)
        if (checked.keys, checked.sizes) != (memory.keys, memory.sizes):  # a warning is what Flower's processes show
            log.warning("%s: %s", name, sums.comparison(checked.keys, checked.sizes))
        w = own_weights(site.trial, {member: request.sizes[member] for member in request.sites})
        if w[name] > most * sum(w.values()):
            raise MaskError(
                f"{name} would be more than {most:.0%} of the sum, which would reveal it (its most-weight)."
            )
        reports = {key.removeprefix("reports/"): x for key, x in no_reports(site.trial)[0].items()}
        reported = [stored.tensors.get(key, zero).flatten().double() for key, zero in reports.items()]
        values = torch.cat([w[name] / sums.unit(w) * stored.tensors["update"].double(), *reported])
        return sums.masked_vector(checked, request, name, values, stored.fields)

    sent = change_memory(_path(site), made)
    _note_round(site, request.round, stored.fields["receipt"])
    return Parcel({"shares": sent.shares, "hashes": sent.hashes}, {"masked": sent.vector})


def _limits(site: Site) -> tuple[dict[str, str] | None, int]:
    """The keys that may be in a sum, None for any, and its fewest sites.

    A report of the length of an update is a second sum of nearly the same numbers, of which one more site must be unknown.
    """
    own, reports = site.node_config, sum(x.numel() for x in no_reports(site.trial)[0].values())
    peers = sums.read_peers(Path(str(own["peers"])).expanduser()) if "peers" in own else None
    return peers, int(own.get("least-sites", LEAST_SITES)) + reports // site.trial.model.n_params


def _unmask(site: Site, asked: Parcel) -> Parcel:
    """Help to unmask the last sum: the shares that its sites encrypted for this one."""
    name, hashed, hidden = site.trial.names[0], str(asked.fields["told"]), asked.fields["shares"]
    shares = change_memory(_path(site), lambda memory: sums.shares_of(memory, hashed, name, hidden))
    return Parcel({"shares": {other: share.hex() for other, share in shares.items()}})


# guarded sites
def _guarded(site: Site, kind: str, asked: Parcel) -> Parcel:
    """The answer of a guarded site to a message other than those of masked sums.

    Raises
    ------
    SiteError : it does not answer this. Whatever :meth:`Site.answer` raises.
    """
    if kind not in ("evaluate", "train", "query.finish"):
        return site.answer(kind, asked)
    if kind == "query.finish":
        try:
            return site.answer(kind, asked)
        except (SiteError, CodecError):
            raise
        except Exception:  # of training from a model that the server chose
            log.exception("the model of this site is not stored, and the server is not told")
            return Parcel()
    if type(asked.fields.get("t")) is not int:
        raise refusal("the round of the message is not a whole number")
    public, asked = _read_once(site, asked)
    if kind == "train":
        _bind(site, public, asked)
        answered = site.answer(kind, asked)
        _note_round(site, asked.fields["t"], answered.fields["receipt"])
        return answered
    fields, past = asked.fields, _past(site)
    t = fields["t"]
    if past.get("round") is None or t != past["round"] + 1:
        raise refusal("it measures only the model after the last round in which it counted")
    question = transcript(fields, asked.tensors)
    if past.get("measured") == t and past["question"] == question:
        return Parcel(dict(past["answer"]))  # of a server that starts again
    if past.get("measured") == t:
        raise refusal(f"it has measured the model after round {past['round']} already")
    if past["experiment"] != dict(site.experiment):
        raise refusal("it measures under the method and the settings of its last round only")
    if fields["own"] and (fields["receipt"] != past["receipt"] or "initial" in asked.tensors):
        raise refusal("its own model is that of its last round")
    whole = asked.tensors.get("global", public)
    if whole.shape != public.shape or sums.model_digest(whole) != sums.model_digest(public):
        raise refusal("it measures one model a round")
    asking = {"measured": t, "question": question, "bound": [t, *_codes(public, asked)]}
    _note(site, {**past, **asking, "answer": {"error": "stopped in the middle of this question"}})
    answered = site.answer(kind, asked)
    _note(site, {**past, **asking, "answer": answered.fields})
    return answered


def _read_once(site: Site, asked: Parcel) -> tuple[Tensor, Parcel]:
    """Decode the model of a message once: its public part, and the message with the full model."""
    vector, units = site._received(asked)
    public = site._public(vector)
    if units is not None:
        return public, asked
    rest = {name: x for name, x in asked.tensors.items() if not name.startswith("model/")}
    return public, Parcel({**asked.fields, "model": {}}, rest | {"model/values": public})


def _bind(site: Site, public: Tensor, asked: Parcel) -> None:
    """Require that a round trains from the model that the site has measured before it, if it has.

    Raises
    ------
    SiteError : it is a different one.
    """
    t, *bound = _past(site).get("bound", [None])
    if not site.guarded or t is None or t > asked.fields["t"]:
        return
    model, messages = _codes(public, asked)
    if model == bound[0] and (not bound[1] or messages == bound[1]):
        return
    if t == asked.fields["t"]:
        raise refusal("it measured a different model than the one that it must train")
    log.warning("%s measured a model after round %d that it never trained from", site.trial.names[0], t - 1)


def _note_round(site: Site, t: int, receipt: list[Any]) -> None:
    """Store that the site counts in round ``t``, and the receipt of its state after it."""
    if site.guarded and t > (past := _past(site)).get("round", -1):
        _note(site, {**past, "round": t, "receipt": receipt, "experiment": dict(site.experiment)})


def _codes(public: Tensor, asked: Parcel) -> list[str]:
    """Codes of the public part of a model, and of its messages, empty without any."""
    messages = {name: fingerprint.digest(x) for name, x in sorted(asked.part("messages").items())}
    return [sums.model_digest(public), json.dumps(messages) if messages else ""]


def _past(site: Site) -> dict[str, Any]:
    try:
        past = seals.read_json(read_regular(site.store.directory / "questions.json").decode())
        if not isinstance(past.get("round", 0), int) or not isinstance(past.get("bound", []), list):
            raise ValueError("not what was written")
        return dict(past)
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError):
        raise refusal("its file questions.json is damaged; put it back, or start a new experiment") from None


def _note(site: Site, past: Mapping[str, Any]) -> None:
    write_atomically(site.store.directory / "questions.json", json.dumps(dict(past)), private=True)


KINDS: dict[str, Callable[[Site, Parcel], Parcel]] = {
    **UNMASKED,
    "query.keys": _introduce,
    "train.masked": _train,
    "train.sum": _sum,
    "query.unmask": _unmask,
}


def no_reports(trial: Trial) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Reports of zeros that are summed in addition to the updates, and the whole length of those without private coordinates."""
    reports = [rule.no_report(trial.setup) for rule in trial.method.rules]
    return packed("reports", reports, hiding(trial.private, trial.model.n_params))


def _path(site: Site) -> Path:
    return site.store.directory / "masks.json"


def _cache(site: Site) -> Path:
    return site.store.directory / "update.safetensors"
