"""FLGo: a benchmark made from a file, its four algorithms, and its own logger, which tests the server's model."""

import importlib
import sys
from functools import partial
from pathlib import Path

from whole_table import compare
from whole_task import BATCH, BETA, CLIENTS, LR, MU, ROUNDS, SAMPLES

# isort: split
# After whole_task, which mends torchvision: FLGo imports it.
import flgo
from flgo.algorithm import fedavg, fedavgm, fedprox, scaffold
from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe
from flgo.benchmark.toolkits.partition import BasicPartitioner

ALGORITHMS = {
    "fedavg": (fedavg, []),
    "fedprox": (fedprox, [MU]),
    "scaffold": (scaffold, []),
    "fedavgm": (fedavgm, [BETA]),
}

# FLGo's data sets override __getitem__ alone, which torch 2.13 refuses; this is the remedy its message names.
FromDatasetPipe.TaskDataset.__getitems__ = lambda self, rows: [self[i] for i in rows]


class Blocks(BasicPartitioner):
    """Every client owns as many rows, one after another."""

    num_clients = CLIENTS

    def __call__(self, data):  # noqa: D102
        return [list(range(i * SAMPLES, (i + 1) * SAMPLES)) for i in range(CLIENTS)]

    def __str__(self):
        return "blocks"


def run(method: str, seed: int, folder: str) -> list[float]:
    """The accuracy after every round."""
    algorithm, parameters = ALGORITHMS[method]
    runner = flgo.init(
        folder,
        algorithm,
        {
            "num_rounds": ROUNDS,
            "num_epochs": 1,
            "learning_rate": LR,
            "batch_size": BATCH,
            "sample": "full",
            "proportion": 1.0,
            "train_holdout": 0.0,
            "eval_interval": 1,
            "seed": seed,
            "algo_para": parameters,
            "gpu": [],
            "no_log_console": True,
            "no_tqdm": True,
        },
    )
    runner.run()
    return runner.gv.logger.output["test_accuracy"]


if __name__ == "__main__":
    sys.path[:0] = [str(Path.cwd())]
    here = Path(__file__).parent
    name = flgo.gen_benchmark_from_file(
        "digits", str(here / "whole_flgo_data.py"), target_path=".", data_type="cv", task_type="classification"
    )
    benchmark = importlib.import_module(name)
    benchmark.visualize = lambda *args: None  # its picture of the partition takes longer than the training
    flgo.gen_task_by_(benchmark, Blocks(), task_path="task")
    compare(partial(run, folder="task"))
