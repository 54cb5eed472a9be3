"""Predicting with a bundle, by the habits of scikit-learn."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load as load_tensors
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from torch import Tensor, nn

from equipoise import networks
from equipoise.bundle import files
from equipoise.bundle.files import AGAIN, GRAPH, SCHEMA, WEIGHTS
from equipoise.bundle.inputs import GroupColumn, Inputs, Rows, codes_of, inputs_of
from equipoise.core.model import Bound, Model
from equipoise.core.oracle import EVALUATION_BATCH
from equipoise.core.outputs import outputs_of
from equipoise.core.task import CLASSIFICATION, Classification, Regression
from equipoise.data.batch import Batch
from equipoise.data.samples import Samples, at_once, tensor
from equipoise.data.tables.cells import word_of
from equipoise.metrics.calibration import Decision
from equipoise.system.errors import InputError
from equipoise.system.files import ANYWHERE, LARGE, read_regular
from equipoise.system.seals import open_json, typed

ROWS = 1 << 15  # samples, about, between two looks at the progress
Forward = Callable[[Samples], Tensor]  # samples to the outputs of the network [n, C]
DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "float16", "bfloat16", "int64")}


@dataclass(frozen=True)
class Content:
    """What is in a bundle: its description, how inputs are made, what outputs mean, the network, and how two classes are decided.

    ``groups`` is the column of a table with the groups that a decision needs, if a table was read.
    """

    about: Mapping[str, Any]
    inputs: Inputs
    task: Classification | Regression
    forward: Forward
    decision: Decision | None = None
    groups: GroupColumn | None = None

    def outputs(self, x: NDArray[Any]) -> Iterator[Tensor]:
        """The outputs [., C] of the network for inputs [n, ...], some thousands at a time, the same bits as all at once."""
        blank = torch.zeros(len(x), dtype=self.task.dtype)
        store = Batch(tensor(np.ascontiguousarray(x), "the samples", "x"), blank)
        samples = Samples(store, DTYPES[self.about["dtype"]], torch.device("cpu"), self.inputs.transform)
        width = at_once(samples, EVALUATION_BATCH)
        for rows in torch.arange(len(x)).split(width * max(1, ROWS // width)):
            outputs = self.forward(samples.take(rows))
            if not bool(outputs.isfinite().all()):
                row = int(rows[(~outputs.isfinite()).any(1).nonzero()[0]]) + 1
                raise InputError(
                    f"The network gives no finite number for sample {row}. Is it very far from all others?"
                )
            yield outputs

    @staticmethod
    def read(folder: Path) -> Content:
        """What is in a folder, see :func:`load`."""
        about = files.read(folder)
        try:
            inputs = inputs_of(about["inputs"], lambda: open_json(read_regular(folder / SCHEMA, ANYWHERE).decode()))
            name, options = about["task"]["name"], {k: value for k, value in about["task"].items() if k != "name"}
            task = Regression(**options) if options or name != "classification" else CLASSIFICATION
            forward = _network(about, folder / WEIGHTS, task) if about["network"] else session(folder / GRAPH)
            made = about.get("decision")
            if made is None and about["threshold"] != 0.5:  # of format 1
                made = asdict(Decision(edges=(float(about["threshold"]),)))
            decision = made and typed(Decision, {f.name: made[f.name] for f in fields(Decision)})
            column = made and made.get("column") and typed(GroupColumn, made["column"])
            return Content(about, inputs, task, forward, decision, column or None)
        except Exception as error:  # its hashes are right, so somebody else made it
            if isinstance(error, ImportError | OSError) or type(error) is InputError:  # which names what is wrong
                raise
            words = f"{type(error).__name__}: {error}"
            raise InputError(f"{folder} is not what Equipoise writes ({words}). {AGAIN}") from error


def _network(about: Mapping[str, Any], weights: Path, task: Classification | Regression) -> Forward:
    """The network that :func:`equipoise.networks.build` makes, with the weights of the bundle."""
    recipe, tensors = about["network"], load_tensors(read_regular(weights, ANYWHERE, LARGE))
    if recipe.get("name") not in networks.NETWORKS or networks.WEIGHTS in recipe:
        raise InputError(
            f"This Equipoise has no network {recipe.get('name')!r}. Install the version {about['versions'].get('equipoise')}."
        )
    if networks.shapes(**recipe) != {name: x.shape for name, x in tensors.items()}:  # before memory is taken
        raise InputError(f"{WEIGHTS} does not hold the tensors of the network {recipe['name']}. {AGAIN}")
    net = networks.build(**recipe).to(DTYPES[about["dtype"]])
    net.load_state_dict(tensors)
    model = Model(net, task=task)
    model.channels_last, model.bf16 = about["channels_last"], about["bf16"]
    bound = Bound(model)
    return lambda samples: outputs_of(bound, model.initial, [samples], torch.get_num_threads())[0].values


class Predictor(BaseEstimator):  # type: ignore[misc]
    """A trained model in a bundle, which predicts and cannot be trained.

    Parameters
    ----------
    directory : the folder of the bundle.

    Attributes
    ----------
    n_features_in_ : how many columns, or numbers of a sample, it takes.
    feature_names_in_ : names of the columns, where they have any; a frame's are matched by name, in whatever order.
    content : what is in the bundle.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = directory
        self.content = Content.read(Path(directory))
        self.n_features_in_ = int(np.prod(self.content.inputs.shape))
        if names := self.content.inputs.names:
            self.feature_names_in_ = np.array(names, dtype=object)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.directory,)

    @property
    def about(self) -> Mapping[str, Any]:
        """What ``bundle.json`` says: method, data, measures, versions, hashes."""
        return self.content.about

    @property
    def inputs(self) -> Inputs:
        """How inputs are made of what a user has."""
        return self.content.inputs

    def fit(self, X: Any = None, y: Any = None) -> NoReturn:
        """Refuse: a bundle is trained already."""
        raise InputError(
            "A bundle is a trained model and learns nothing more. Train with equipoise run, or eq.Federation(...).fit. In a Pipeline that is "
            "fitted, or cross_val_predict: sklearn.frozen.FrozenEstimator(model)."
        )

    def set_params(self, **params: Any) -> Self:
        """Refuse another folder, whose model would not be this one."""
        if changed := [name for name, value in params.items() if name != "directory" or value != self.directory]:
            raise InputError(f"{changed[0]} of a trained model cannot be changed. Load the other bundle: eq.load(DIR).")
        return self

    def outputs(self, X: Any) -> Tensor:
        """What the network gives [n, C] for samples: logits, or of regression numbers that are not in the unit of the target yet.

        Notes on the samples, such as categories that training has not seen, are warnings.
        """
        x, notes = self.inputs.read_inputs(Path(X), {})[0] if isinstance(X, str | Path) else self.inputs(X)
        for note in notes:
            warnings.warn(note, UserWarning, stacklevel=3)
        return torch.cat([*self.content.outputs(x)])


class Classifier(ClassifierMixin, Predictor):  # type: ignore[misc]
    """A classifier in a bundle; see :class:`Predictor`.

    Attributes
    ----------
    classes_ : names of the classes, whole numbers where all of them are, in the order of the columns of :meth:`predict_proba`.
    """

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes."""
        names = self.about["classes"]
        whole = all(name.lstrip("-").isdigit() and str(int(name)) == name for name in names if name.isascii())
        return np.array([*map(int, names)] if whole and all(map(str.isascii, names)) else names)

    def predict_proba(self, X: Any) -> NDArray[np.floating[Any]]:
        """Probabilities [n, C] of the classes of samples, bit for bit those of the run for the same samples together, or recalibrated ones."""
        return self.probabilities(self.outputs(X))

    def predict(self, X: Any, groups: Sequence[Any] | None = None) -> NDArray[Any]:
        """The classes [n] of samples; ``groups`` of people [n], if thresholds are by group, are a column of the table unless given."""
        outputs = self.outputs(X)
        decision, column = self.content.decision, self.content.groups
        if groups is None and decision is not None and decision.attribute and column is not None:
            groups = cast(Rows, self.inputs).cells(X, column.column)
        codes, note = self.codes(groups, len(outputs))
        if note:
            warnings.warn(note, UserWarning, stacklevel=2)
        return self.decided(outputs, codes)

    def codes(self, groups: Sequence[Any] | None, n: int) -> tuple[NDArray[np.int64] | None, str]:
        """The codes [n] of the groups of samples, where thresholds are by group, and a note on unknown ones."""
        decision, column = self.content.decision, self.content.groups
        attribute = "" if decision is None else decision.attribute
        if decision is None or not attribute:
            if groups is not None:
                raise InputError("groups: this model decides about all groups alike. Leave it out.")
            return None, ""
        if groups is None or isinstance(groups, str) or len(groups) != n:
            what = "none" if groups is None else repr(groups) if isinstance(groups, str) else f"{len(groups):,}"
            todo = f"Give the {attribute} of each of the {n:,} samples, in Python predict(x, groups=[...])"
            raise InputError(f"This model has a threshold for each value of {attribute}. {todo}; found {what}.")
        group_of = word_of if column is None else column.group_of
        words = [word if (word := word_of(cell)) in decision.groups else group_of(cell) for cell in groups]
        codes, note = codes_of(words, decision.groups, f"column {column.column}" if column else "groups")
        return codes, note and f"{note} Their threshold is the common one, {decision.edges[-1]:.4g}."

    def probabilities(self, outputs: Tensor) -> NDArray[np.floating[Any]]:
        """Probabilities [n, C] of outputs, recalibrated if the bundle is."""
        decision = self.content.decision
        if decision is None or decision.calibration is None:
            return np.asarray(outputs.softmax(-1))
        k, probability = self.about["positive"]["number"], decision.shown(self._scores(outputs))
        return np.stack([probability, 1 - probability] if k == 0 else [1 - probability, probability], 1)

    def decided(self, outputs: Tensor, codes: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """The classes [n] of outputs: the most probable, or by the decision of the bundle, of people with ``codes`` [n] of groups."""
        decision = self.content.decision
        if decision is None:
            chosen = self.content.task.predictions(outputs).numpy()
        else:
            k = self.about["positive"]["number"]
            chosen = np.where(decision(self._scores(outputs), codes), k, 1 - k)
        return np.asarray(self.classes_[chosen])

    def _scores(self, outputs: Tensor) -> NDArray[np.float64]:
        """Probabilities [n] of the positive class, as the threshold was chosen, in double precision."""
        return np.asarray(self.content.task.outputs(outputs)[:, self.about["positive"]["number"]])


class Regressor(RegressorMixin, Predictor):  # type: ignore[misc]
    """A regression in a bundle; see :class:`Predictor`."""

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The numbers [n] that are predicted for samples, in the unit of the target."""
        return self.decided(self.outputs(X))

    def codes(self, groups: Any, n: int) -> tuple[None, str]:
        """None: no group matters."""
        return None, ""

    def decided(self, outputs: Tensor, codes: Any = None) -> NDArray[np.float64]:
        """The numbers [n] of outputs, in the unit of the target."""
        return np.asarray(self.content.task.predictions(outputs))


def load(directory: str | os.PathLike[str]) -> Classifier | Regressor:
    """A trained model from a bundle, as ``equipoise export RUN --bundle DIR`` or ``Federation.save_bundle`` writes it.

    It has ``predict``, ``n_features_in_`` and ``feature_names_in_``, of classes also ``predict_proba`` and ``classes_``, as estimators
    of scikit-learn have, and can stand at the end of a ``Pipeline``. Loading it runs no code of the bundle.

    Parameters
    ----------
    directory : the folder of the bundle.

    Raises
    ------
    InputError : no bundle, of a later format, or edited since it was written, naming the file.
    """
    regression = files.read(Path(directory))["task"]["name"] == "regression"
    return (Regressor if regression else Classifier)(directory)


# the network as a graph of ONNX, which other software runs; with the packages of the extra ``onnx``
BLOCK = 256  # samples at once
NEEDED = ("onnx", "onnxscript", "onnxruntime")


def _require(*packages: str) -> None:
    if lacking := [name for name in packages if find_spec(name) is None]:
        raise InputError(f"A graph of ONNX needs the package {lacking[0]}: pip install 'equipoise[onnx]'.")


def graph(net: nn.Module, x: Any) -> bytes:
    """A network in evaluation mode as a graph, whose input is ``inputs`` [n, ...], like ``x``, and whose output is ``outputs`` [n, C]."""
    _require(*NEEDED)
    batch = torch.export.Dim("n", min=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, on itself
        made = torch.onnx.export(
            net.eval(),
            (x,),
            dynamo=True,
            input_names=["inputs"],
            output_names=["outputs"],
            dynamic_shapes=({0: batch},),
            external_data=False,
            verbose=False,
        )
    assert made is not None
    content: bytes = made.model_proto.SerializeToString()
    return content


def session(path: Path) -> Callable[[Samples], Tensor]:
    """The outputs of samples by a graph.

    Raises
    ------
    InputError : the package has no implementation of an operation in the precision of the network.
    """
    _require("onnxruntime")
    runtime: Any = import_module("onnxruntime")
    try:
        run = runtime.InferenceSession(read_regular(path, ANYWHERE, LARGE), providers=["CPUExecutionProvider"]).run
    except Exception as error:  # of kinds of its own
        raise InputError(
            f"The package onnxruntime {runtime.__version__} cannot run this network ({str(error).split(' : ')[-1].rstrip('. ')}). It has many "
            "operations in single precision only. Train the network in that, net.float(); one of eq.network needs no graph."
        ) from error

    def forward(samples: Samples) -> Tensor:
        inputs: Any = (samples.batch(rows, None).x for rows in torch.arange(samples.size).split(BLOCK))
        return torch.cat([torch.from_numpy(run(None, {"inputs": x.numpy()})[0]) for x in inputs])

    return forward
