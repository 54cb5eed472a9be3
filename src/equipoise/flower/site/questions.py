"""What a guarded site answers in addition to training: once a round, the scores of the model that its next round trains from.

A site is guarded if its node config has ``secure`` or ``max-epsilon``. Otherwise a server could learn its data from the scores of
models that it made for this. So the site answers ``evaluate`` once after each round in which it counted, under the method and the
settings of that round, with its own state of that round. In the next round it trains from the model that it measured, or not at
all. Numbers are counts, or rounded to :data:`equipoise.flower.site.site.DIGITS` digits after the point.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from equipoise.federation.fingerprint import digest
from equipoise.flower.codec import CodecError, Parcel
from equipoise.flower.secagg.masks import model_digest, transcript
from equipoise.flower.site.site import Site
from equipoise.system.errors import SiteError, refusal
from equipoise.system.files import read_regular, write_atomically
from equipoise.system.seals import read_json

log = logging.getLogger(__name__)


def answer(site: Site, kind: str, asked: Parcel) -> Parcel:
    """The site's answer to a message other than those of masked sums.

    Raises
    ------
    SiteError : it is guarded, and does not answer this. Whatever :meth:`Site.answer` raises.
    """
    if not site.guarded or kind not in ("evaluate", "train", "query.finish"):
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
    public, asked = read_once(site, asked)
    if kind == "train":
        bind(site, public, asked)
        answered = site.answer(kind, asked)
        note_round(site, asked.fields["t"], answered.fields["receipt"])
        return answered
    fields, past = asked.fields, _read(site)
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
    if whole.shape != public.shape or model_digest(whole) != model_digest(public):
        raise refusal("it measures one model a round")
    asking = {"measured": t, "question": question, "bound": [t, *_told(public, asked)]}
    _write(site, {**past, **asking, "answer": {"error": "stopped in the middle of this question"}})
    answered = site.answer(kind, asked)
    _write(site, {**past, **asking, "answer": answered.fields})
    return answered


def read_once(site: Site, asked: Parcel) -> tuple[Tensor, Parcel]:
    """Decode the model of a message once: its public part, and the message with the full model."""
    vector, units = site._received(asked)
    public = site._public(vector)
    if units is not None:
        return public, asked
    rest = {name: x for name, x in asked.tensors.items() if not name.startswith("model/")}
    return public, Parcel({**asked.fields, "model": {}}, rest | {"model/values": public})


def bind(site: Site, public: Tensor, asked: Parcel) -> None:
    """Require that a round trains from the model that the site has measured before it, if it has.

    Raises
    ------
    SiteError : it is a different one.
    """
    t, *bound = _read(site).get("bound", [None])
    if not site.guarded or t is None or t > asked.fields["t"]:
        return
    model, messages = _told(public, asked)
    if model == bound[0] and (not bound[1] or messages == bound[1]):
        return
    if t == asked.fields["t"]:
        raise refusal("it measured a different model than the one that it must train")
    log.warning("%s measured a model after round %d that it never trained from", site.trial.names[0], t - 1)


def note_round(site: Site, t: int, receipt: list[Any]) -> None:
    """Store that the site counts in round ``t``, and the receipt of its state after it."""
    if site.guarded and t > (past := _read(site)).get("round", -1):
        _write(site, {**past, "round": t, "receipt": receipt, "experiment": dict(site.experiment)})


def _told(public: Tensor, asked: Parcel) -> list[str]:
    """Codes of the public part of a model, and of its messages, empty without any."""
    messages = {name: digest(x) for name, x in sorted(asked.part("messages").items())}
    return [model_digest(public), json.dumps(messages) if messages else ""]


def _read(site: Site) -> dict[str, Any]:
    try:
        past = read_json(read_regular(site.store.directory / "questions.json").decode())
        if not isinstance(past.get("round", 0), int) or not isinstance(past.get("bound", []), list):
            raise ValueError("not what was written")
        return dict(past)
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError):
        raise refusal("its file questions.json is damaged; put it back, or start a new experiment") from None


def _write(site: Site, past: Mapping[str, Any]) -> None:
    write_atomically(site.store.directory / "questions.json", json.dumps(dict(past)), private=True)
