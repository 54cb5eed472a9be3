"""FLGo: a benchmark made from a file, its fedavg, and no evaluation."""

import importlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from jobs import LR, MOMENTUM, WEIGHT_DECAY, Clock, arguments, finish

# isort: split
# After jobs, which mends torchvision: FLGo imports it.
import flgo
from flgo.algorithm import fedavg
from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe
from flgo.benchmark.toolkits.partition import BasicPartitioner
from flgo.experiment.logger import BasicLogger

options = arguments()
job, clock = options.job, Clock()
sys.argv = sys.argv[:1]  # FLGo reads the command line too
os.environ.update(JOB=options.name, CHECK=json.dumps(options.check))  # for flgo_data.py

# FLGo's data sets override __getitem__ alone, which torch 2.13 refuses; this is the remedy its message names.
FromDatasetPipe.TaskDataset.__getitems__ = lambda self, rows: [self[i] for i in rows]


class Blocks(BasicPartitioner):
    """Every client owns as many rows, one after another, as in every other system."""

    num_clients = job.clients

    def __call__(self, data):  # noqa: D102
        return [list(range(i * job.samples, (i + 1) * job.samples)) for i in range(job.clients)]

    def __str__(self):
        return "blocks"


class Silent(BasicLogger):
    """Writes nothing."""

    def log_once(self, *args, **kwargs):  # noqa: D102
        pass

    save_output_as_json = log_once


class Server(fedavg.Server):
    """FLGo's, with a clock."""

    def iterate(self):  # noqa: D102
        if clock.last is None:
            clock.mark()
        found = super().iterate()
        clock.mark()
        return found


class Client(fedavg.Client):
    """FLGo's; it always shuffles, so a check takes its loader's place."""

    def get_batch_data(self):  # noqa: D102
        if not options.check:
            return super().get_batch_data()
        if not hasattr(self, "batches"):
            self.batches = iter(())
        batch = next(self.batches, None)
        if batch is None:
            self.batches = iter(self.calculator.get_dataloader(self.train_data, self.batch_size, shuffle=False))
            batch = next(self.batches)
        return batch


class Algorithm:
    """What FLGo takes for an algorithm: a module, or anything with a server and a client."""

    __name__ = "fedavg"
    Server, Client = Server, Client


here, folder = Path(__file__).parent, tempfile.mkdtemp()
os.chdir(folder)
sys.path[:0] = [folder, str(here)]
name = flgo.gen_benchmark_from_file(
    "synthetic", str(here / "flgo_data.py"), target_path=".", data_type="cv", task_type="classification"
)
benchmark = importlib.import_module(name)
benchmark.visualize = lambda *args: None  # its picture of the partition takes longer than the training
flgo.gen_task_by_(benchmark, Blocks(), task_path="task")
run = flgo.init(
    "task",
    Algorithm(),
    {
        "num_rounds": options.rounds,
        "num_epochs": 1,
        "learning_rate": LR,
        "momentum": MOMENTUM,
        "weight_decay": WEIGHT_DECAY,
        "batch_size": job.batch,
        "sample": "full" if job.share == 1 else "uniform",
        "proportion": job.share,
        "aggregate": "uniform",
        "train_holdout": 0.0,
        "eval_interval": 0,
        "gpu": [],
        "no_log_console": True,
        "no_tqdm": True,
        "torch_num_threads": options.threads,
        "num_parallels": options.parallel,
        "parallel_type": "t",
    },
    Logger=Silent,
)
run.run()
finish(options, run.model.parameters())
shutil.rmtree(folder, ignore_errors=True)
