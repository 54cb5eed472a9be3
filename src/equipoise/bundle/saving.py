"""Writing a bundle of a trained model."""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from equipoise import networks
from equipoise.bundle import card, files
from equipoise.bundle.inputs import Inputs, Rows, inputs_of_run
from equipoise.bundle.predictor import Content, graph
from equipoise.core.model import Bound, Model
from equipoise.core.outputs import outputs_of
from equipoise.core.task import Classification, Regression
from equipoise.data.batch import Batch
from equipoise.data.samples import Samples
from equipoise.metrics.calibration import Decision
from equipoise.records.history import History
from equipoise.records.threshold import Chosen, Recalibrated
from equipoise.system.environment import versions
from equipoise.system.errors import InputError
from equipoise.system.suggestions import shorten
from equipoise.system.tensor_files import as_bytes
from equipoise.system.text import visible

LICENCE = 100  # signs of its name
PROBE = 64  # samples of which the bundle must give the same bits


@dataclass(frozen=True)
class Trained:
    """A trained model, and what is known of it.

    Parameters
    ----------
    model : the network as it was trained.
    vector : its values [G].
    samples : of one client, by which the bundle is tried.
    history : one record: this model on the test sets, and the names of the classes.
    client : the name of the client whose own model it is; empty: the global one.
    data : what the manifest of the run says of the data.
    decision : what the bundle decides, and shows, if it is not the most probable class.
    threshold : in [0, 1], of the decision: of people of whom no group is known.
    chosen : how the threshold was chosen, or those by group, and what they do, for the card.
    recalibration : of the probabilities.
    """

    model: Model
    vector: Tensor
    samples: Samples
    history: History
    client: str
    data: Mapping[str, Any]
    decision: Decision | None = None
    threshold: float = 0.5
    chosen: Chosen | None = None
    recalibration: Recalibrated | None = None


def save(
    folder: Path,
    trained: Trained,
    *,
    license: str = "",
    use: str = "",
    onnx: bool = False,
    contact: str = "",
    name: str = "",
) -> None:
    """Write a bundle, after it was tried: it gives the same bits as the model for some samples.

    Parameters
    ----------
    folder : a new one, or an empty one.
    trained : the model.
    license : of the data and of the model made of them, one line, as the Hugging Face Hub calls it, such as ``"cc-by-4.0"``, or another name.
    use : what the model is for, a sentence of the model card.
    onnx : also write the network as a graph of ONNX.
    contact : whom to ask, for the model card.
    name : what the card calls it; the name of the folder by default.

    Raises
    ------
    InputError : the folder is not empty, nothing was trained, or a part of the model is code of the user's.
    """
    files.require_free(folder)
    license, threshold, chosen = _licence(license), trained.threshold, trained.chosen
    model, net = trained.model, trained.model.network(trained.vector)
    inputs, task = _inputs(trained), _task(model)
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold must be between 0 and 1; found {threshold!r}.")
    decision, positive = _decision(trained), trained.history.positive
    if chosen is not None and chosen["hash"] != hashlib.sha256(as_bytes(trained.vector)).hexdigest():
        raise InputError("The threshold was chosen for another model. Choose one for this model, or leave it out.")
    state = {name: x.detach().cpu().contiguous().clone() for name, x in net.state_dict().items()}
    if strange := [name for name, x in state.items() if not bool(x.isfinite().all())]:
        raise InputError(
            f"{strange[0]} of the network holds NaN or infinity, as after a training that diverged. There is nothing to take home."
        )
    if trained.history.records[-1]["round"] < 0:
        raise InputError("No round was trained, so there is nothing to take home: call fit first.")
    recipe = vars(model.net).get(networks.RECIPE)
    if recipe is None and not onnx:
        fault = f"The network is your own code ({type(model.net).__name__}), which a bundle does not hold, as loading one runs no code"
        todo = "write it as a graph too, with --onnx, in Python onnx=True (pip install 'equipoise[onnx]')."
        raise InputError(f"{fault}: {todo}")
    content = {files.WEIGHTS: save_tensors(state)}
    if isinstance(inputs, Rows):
        content[files.SCHEMA] = json.dumps(inputs.coder.as_json(), indent=1, ensure_ascii=False).encode()
    if onnx:
        content[files.GRAPH] = graph(net.cpu(), _here(trained.samples).batch(torch.tensor([0, 0]), None).x)
    of_hub = str(trained.data.get("source")).startswith("hub:")  # others are paths
    named = ("scenario", "layout", "sha256", *["source"] * of_hub)
    about = {
        "task": task,
        "classes": list(trained.history.classes),
        "positive": positive and positive._asdict(),
        "threshold": threshold,
        "decision": decision,
        "recalibration": trained.recalibration,
        "network": recipe,
        "parameters": model.n_params,
        "dtype": str(trained.samples.dtype).removeprefix("torch."),
        "channels_last": model.channels_last,
        "bf16": model.bf16,
        "inputs": inputs.as_json(),
        "method": trained.history.method,
        "client": trained.client,
        "seed": trained.history.seed,
        "rounds": trained.history.meta.get("rounds"),
        "round": trained.history.records[-1]["round"],
        "license": license,
        "use": " ".join(use.split()),
        "contact": " ".join(contact.split()),
        "chosen": chosen,
        "data": {name: trained.data[name] for name in named if name in trained.data},
        "measures": card.measures(trained.history),
        "versions": versions(),
    }
    page = card.Card(name or folder.absolute().name, about, trained.history, inputs)
    content |= dict(zip(files.CARDS, (page.markdown().encode(), page.page.html().encode()), strict=True))
    with tempfile.TemporaryDirectory(prefix="equipoise-bundle-") as place:
        files.write(trial := Path(place) / "bundle", about, content)
        _try(trial, trained)
    files.write(folder, about, content)


def _licence(text: Any) -> str:
    """The name of a licence on one line, without blanks around it."""
    name = text.strip() if isinstance(text, str) else "\n"
    if visible(name) != name or len(name) > LICENCE:
        expected = f"the name of a licence on one line, such as cc-by-4.0, of at most {LICENCE} signs"
        raise InputError(f"--license must be {expected}; found {shorten(repr(text))}.")
    return name


def _decision(trained: Trained) -> dict[str, Any] | None:
    """What the bundle decides between two classes, with the column of its attribute; None: the most probable class."""
    if (decision := trained.decision) is None:
        return None
    history = trained.history
    if history.positive is None or len(history.classes) != 2:
        if trained.threshold == 0.5:
            raise InputError(
                f"{history.method} decides by group whether a sample is of one of {len(history.classes)} classes, and a bundle holds such "
                "decisions between two only. Take the weights home instead: equipoise export RUN (Python: fed.network())."
            )
        raise InputError("threshold is for two classes, of which one is positive. Leave it out.")
    groups = trained.data.get("read", {}).get("groups", {}) if "schema" in trained.data else {}
    return asdict(decision) | {"column": groups.get(decision.attribute)}


def _inputs(trained: Trained) -> Inputs:
    shape = None if trained.samples.shape_and_labels is None else trained.samples.shape_and_labels[0]
    if shape is None or isinstance(shape, dict):
        raise InputError(
            "A bundle holds networks of one tensor of inputs, and samples that are in memory or in files of images; this one has others."
        )
    return inputs_of_run(trained.data, tuple(shape), trained.samples.transform)


def _task(model: Model) -> dict[str, Any]:
    task = model.task
    if type(task) is Classification or type(task) is Regression:
        return {"name": task.name} | asdict(task)
    raise InputError(
        f"The task {type(task).__name__} is your own code, which a bundle does not hold, as loading one runs no code."
    )


def _here(samples: Samples) -> Samples:
    """Samples on the processor, where a bundle predicts."""
    store = samples.store.map(Tensor.cpu) if isinstance(samples.store, Batch) else samples.store
    return replace(samples, store=store, device=torch.device("cpu"))


def _try(folder: Path, trained: Trained) -> None:
    """Require that a bundle gives what the model gives: the same bits, unless they are those of a graph, or of another device."""
    samples = trained.samples.take(torch.arange(min(PROBE, trained.samples.size)))
    (expected,) = outputs_of(Bound(trained.model), trained.vector, [samples])
    content = Content.read(folder)
    here = trained.vector.device.type == "cpu"
    near = max(1e-4, 16 * torch.finfo(expected.values.dtype).eps) if here else 0.1
    near = 0.0 if content.about["network"] and here else near
    if not torch.allclose(content.forward(_here(samples)), expected.values.cpu(), rtol=near, atol=near / 10):
        raise InputError(
            "The bundle would not predict as the model does: the network is not as eq.network built it. Nothing was written."
        )
