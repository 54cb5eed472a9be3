"""Flower's simulation on Ray: one actor of one thread for each thread of the others."""

import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from jobs import LR, MOMENTUM, WEIGHT_DECAY, Clock, arguments, data, finish, network  # noqa: E402
from torch.nn import functional  # noqa: E402

options = arguments()
job, shuffle = options.job, not options.check
client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context) -> Message:
    """One client's round, in an actor that keeps the data."""
    torch.set_num_threads(1)
    net = network(job)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(net.parameters(), LR, MOMENTUM, weight_decay=WEIGHT_DECAY)
    x, y = data(job)[context.node_config["partition-id"]]
    order = torch.randperm(len(y)) if shuffle else torch.arange(len(y))
    for rows in order.split(job.batch):
        optimiser.zero_grad()
        functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(content), reply_to=message)


@server.main()
def main(grid, context) -> None:
    """Average for so many rounds."""
    clock, net = Clock(), network(job)
    strategy = FedAvg(
        fraction_train=job.share,
        fraction_evaluate=0.0,
        min_train_nodes=job.cohort,
        min_available_nodes=job.clients,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(net.state_dict()),
        num_rounds=options.rounds,
        evaluate_fn=lambda t, arrays: clock.mark(),  # after every round, and before the first
    )
    net.load_state_dict(result.arrays.to_torch_state_dict())
    finish(options, net.parameters())


run_simulation(
    server,
    client,
    num_supernodes=job.clients,
    backend_config={
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": options.threads, "include_dashboard": False, "logging_level": "ERROR"},
    },
)
