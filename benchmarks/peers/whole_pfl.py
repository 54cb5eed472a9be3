"""pfl-research: its three algorithms, and FedAvgM as averaging with a central optimiser that has momentum. It never shuffles."""

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted, get_overall_value
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional
from whole_table import compare
from whole_task import BATCH, BETA, CLIENTS, LR, MU, ROUNDS, data, network


class Curve(TrainingProcessCallback):
    """Keeps the accuracy on the test set after every round."""

    def __init__(self, test):
        self.test, self.values = PyTorchTensorDataset(test, eval_kwargs={"eval": True}), []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # noqa: D102
        ((_, accuracy),) = model.evaluate(self.test)
        self.values.append(get_overall_value(accuracy))
        return False, Metrics()


def algorithm(method: str):
    """What trains, and its parameters."""
    common = {
        "central_num_iterations": ROUNDS,
        "evaluation_frequency": 10**9,
        "train_cohort_size": CLIENTS,
        "val_cohort_size": 0,
    }
    if method == "fedprox":
        return FedProx(), FedProxParams(**common, mu=MU)
    if method == "scaffold":
        state = InMemoryUserStateStorage()
        more = {"population": CLIENTS, "use_gradient_as_control_variate": False, "user_state_storage": state}
        return SCAFFOLD(), SCAFFOLDParams(**common, **more)
    return FederatedAveraging(), NNAlgorithmParams(**common)


def run(method: str, seed: int) -> list[float]:
    """The accuracy after every round."""
    torch.manual_seed(seed)
    clients, test = data()
    net, curve = network().train(), Curve(test)

    def metrics(x, y, eval=True):
        with torch.no_grad():
            return {"accuracy": Weighted((net(x).argmax(1) == y).sum().item(), len(y))}

    net.loss = lambda x, y, eval=False: functional.cross_entropy(net(x), y)
    net.metrics = metrics
    users = [PyTorchTensorDataset(pair, user_id=str(i), train_kwargs={"eval": False}) for i, pair in enumerate(clients)]
    federated = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(range(CLIENTS))))
    trainer, parameters = algorithm(method)
    trainer.run(
        parameters,
        SimulatedBackend(federated, federated, postprocessors=[WeightByUser()]),
        PyTorchModel(
            net,
            torch.optim.SGD,
            central_optimizer=torch.optim.SGD(net.parameters(), 1.0, BETA if method == "fedavgm" else 0.0),
        ),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH),
        callbacks=[curve],
        send_metrics_to_platform=False,
    )
    return curve.values


if __name__ == "__main__":
    compare(run)
