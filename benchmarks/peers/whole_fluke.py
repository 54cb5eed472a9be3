"""fluke: its four algorithms, loaders in memory, and the accuracy alone on the server's test set."""

import contextlib
import io

from whole_table import compare
from whole_task import BATCH, BETA, CLASSES, CLIENTS, LR, MU, ROUNDS, data, network

# isort: split
# After whole_task, which mends torchvision: fluke imports it.
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.algorithms.fedavgm import FedAVGM
from fluke.algorithms.fedprox import FedProx
from fluke.algorithms.scaffold import SCAFFOLD
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver, ServerObserver
from torchmetrics import Accuracy

ALGORITHMS = {
    "fedavg": (FedAVG, {}, {}),
    "fedprox": (FedProx, {"mu": MU}, {}),
    "scaffold": (SCAFFOLD, {}, {}),
    "fedavgm": (FedAVGM, {}, {"momentum": BETA}),
}


class Curve(FederationObserver, ServerObserver):
    """Keeps the accuracy of every round."""

    def __init__(self):
        self.values = []

    def server_evaluation(self, round, eval_type, evals, **kwargs):  # noqa: D102
        self.values.append(evals["accuracy"])


def run(method: str, seed: int) -> list[float]:
    """The accuracy after every round."""
    algorithm, client, server = ALGORITHMS[method]
    environment, curve = FlukeENV(), Curve()
    environment.set_seed(seed)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=True)
    accuracy = Accuracy(task="multiclass", num_classes=CLASSES)
    environment.set_evaluator(ClassificationEval(eval_every=1, n_classes=CLASSES, accuracy=accuracy))
    clients, test = data()
    loaders = [FastDataLoader(*pair, num_labels=CLASSES, batch_size=BATCH, shuffle=True) for pair in clients]
    tests = FastDataLoader(*test, num_labels=CLASSES, batch_size=len(test[0]), shuffle=False)
    federation = algorithm(
        CLIENTS,
        DataSplitter(DummyDataContainer(loaders, [None] * CLIENTS, tests, num_classes=CLASSES)),
        DDict(
            client={
                "batch_size": BATCH,
                "local_epochs": 1,
                "loss": "CrossEntropyLoss",
                "persistency": False,
                "optimizer": {"name": "SGD", "lr": LR},
                "scheduler": {"name": "StepLR", "gamma": 1, "step_size": 1},
                **client,
            },
            server={"weighted": True, **server},
            model=network(),
        ),
    )
    federation.set_callbacks([curve])
    with contextlib.redirect_stdout(io.StringIO()):  # its bars of progress
        federation.run(ROUNDS, 1.0)
    return curve.values


if __name__ == "__main__":
    compare(run)
