"""fluke: FedAVG with its loaders in memory, no evaluation, and a new optimiser at every visit."""

from jobs import CLASSES, LR, MOMENTUM, WEIGHT_DECAY, Clock, arguments, data, finish, network

# isort: split
# After jobs, which mends torchvision: fluke imports it.
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver

options = arguments()
job, clock = options.job, Clock()


class Tick(FederationObserver):
    """Marks the end of every round."""

    def start_round(self, round, global_model):  # noqa: D102
        if clock.last is None:
            clock.mark()

    def end_round(self, round):  # noqa: D102
        clock.mark()


environment = FlukeENV()
environment.set_seed(0)
environment.set_device("cpu")
environment.set_inmemory(True)
environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
environment.set_evaluator(ClassificationEval(eval_every=10**9, n_classes=CLASSES))
loaders = [
    FastDataLoader(x, y, num_labels=CLASSES, batch_size=job.batch, shuffle=not options.check) for x, y in data(job)
]
algorithm = FedAVG(
    job.clients,
    DataSplitter(DummyDataContainer(loaders, [None] * job.clients, None, num_classes=CLASSES)),
    DDict(
        client={
            "batch_size": job.batch,
            "local_epochs": 1,
            "loss": "CrossEntropyLoss",
            "persistency": False,
            "optimizer": {"name": "SGD", "lr": LR, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY},
            "scheduler": {"name": "StepLR", "gamma": 1, "step_size": 1},
        },
        server={"weighted": True},
        model=network(job),
    ),
)
algorithm.set_callbacks([Tick()])
algorithm.run(options.rounds, job.share, finalize=False)
finish(options, algorithm.server.model.parameters())
