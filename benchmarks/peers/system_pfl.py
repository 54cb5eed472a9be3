"""pfl-research: a PyTorchModel, FederatedAveraging and the SimulatedBackend. It never shuffles a client's samples."""

import torch
from jobs import LR, MOMENTUM, WEIGHT_DECAY, Clock, arguments, data, finish, network
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional

options = arguments()
job, clock = options.job, Clock()


class Tick(TrainingProcessCallback):
    """Marks the end of every round."""

    def on_train_begin(self, *, model):  # noqa: D102
        clock.mark()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # noqa: D102
        clock.mark()
        return False, Metrics()


net = network(job).train()
net.loss = lambda x, y, eval=False: functional.cross_entropy(net(x), y)
net.metrics = lambda x, y, eval=False: {}
users = [PyTorchTensorDataset(pair, user_id=str(i), train_kwargs={"eval": False}) for i, pair in enumerate(data(job))]
federated = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(range(job.clients))))
FederatedAveraging().run(
    NNAlgorithmParams(
        central_num_iterations=options.rounds,
        evaluation_frequency=10**9,
        train_cohort_size=job.cohort,
        val_cohort_size=0,
    ),
    SimulatedBackend(federated, federated, postprocessors=[WeightByUser()]),
    PyTorchModel(
        net,
        lambda parameters, lr: torch.optim.SGD(parameters, lr, MOMENTUM, weight_decay=WEIGHT_DECAY),
        central_optimizer=torch.optim.SGD(net.parameters(), 1.0),
    ),
    NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=job.batch),
    callbacks=[Tick()],
)
finish(options, net.parameters())
