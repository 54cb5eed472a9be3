"""Equipoise from Python: the comparison, its table, and its report; every run is kept, and continues after a kill."""

from concurrent.futures import ProcessPoolExecutor

import torch
from whole_task import BATCH, BETA, LR, MU, ROUNDS, SEEDS, data, network

import equipoise as eq


def main() -> None:
    torch.set_num_threads(1)
    clients, test = data()
    methods = {
        "fedavg": "fedavg",
        "fedprox": f"fedprox(mu={MU})",
        "scaffold": "scaffold",
        "fedavgm": f"fedavgm(beta={BETA})",
    }
    with ProcessPoolExecutor(2) as pool:
        found = eq.compare(
            network,
            clients,
            methods,
            SEEDS,
            rounds=ROUNDS,
            solver=eq.SGD(lr=LR),
            batch_size=BATCH,
            tests={"all": test},
            on=pool,
            directory="runs",
        )
    print(found.table)
    found.report("report.html")


if __name__ == "__main__":
    main()
