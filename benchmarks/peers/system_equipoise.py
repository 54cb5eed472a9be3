"""Equipoise, as a user would run it: everything as it comes, and the engine, too, unless it is named."""

from jobs import LR, MOMENTUM, WEIGHT_DECAY, Clock, arguments, data, finish, network

import equipoise as eq


def main() -> None:
    options = arguments()
    job, clock = options.job, Clock()
    federation = eq.Federation(
        network(job),
        data(job),
        "fedavg",
        eq.SGD(lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY),
        batch_size=job.batch,
        participation=job.share,
        engine=options.engine,
    )
    print(f"ENGINE {federation.engine_choice.engine}", flush=True)
    clock.mark()
    federation.fit(options.rounds, progress=False, on_round=lambda record: clock.mark())
    finish(options, federation.network().parameters())


if __name__ == "__main__":  # engines may start processes
    main()
