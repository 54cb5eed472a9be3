"""How the golden entries of partitions and corruptions are asked of the product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from equipoise.core.draws import cohort_size
from equipoise.methods.principal import Principal
from equipoise.scenarios import corruption, partition

Inputs = dict[str, Any]
Fields = dict[str, Any]


def dirichlet(i: Inputs) -> Fields:
    labels = np.array(i["labels"])
    parts = partition.dirichlet(labels, i["K"], i["alpha"], i["seed"], cap=i["cap"], min_size=i["min_size"])
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    rng, drawn, draws = np.random.default_rng(i["seed"]), None, 0
    while drawn != parts and draws < 10:  # the shares are not part of the result: those of the draw that gave it
        *owned, shares = partition.classwise(classes, i["K"], i["alpha"], rng, cap=i["cap"])
        drawn = partition.parts_of(*owned, i["K"])
        draws += 1
    return {"parts": parts, "proportions": None if i["cap"] else shares.tolist(), "draws": draws}


def power_sizes(i: Inputs) -> Fields:
    given = {"n": i["n"], "clients": i["K"], "exponent": i["a"]}
    return {
        "nominal": partition.power_nominal(**given),
        "sizes_released": partition.power_sizes(**given),
        "sizes_exact": partition.power_sizes(**given, recipe="exact"),
    }


def power(i: Inputs) -> Fields:
    return {"parts": partition.power(i["n"], i["K"], i["seed"], exponent=i["a"])}


def class_ramp_counts(i: Inputs) -> Fields:
    counts = partition.class_ramp_counts(i["K"], i["C"], i["m"])
    return {"counts": counts, "n_classes": [sum(count > 0 for count in row) for row in counts]}


def class_ramp(i: Inputs) -> Fields:
    assert len(set(i["labels"])) == i["C"]
    return {"parts": partition.class_ramp(i["labels"], i["K"], i["m"], i["seed"])}


def retina(i: Inputs) -> Fields:
    return {"parts": partition.retina(i["labels"], i["K"], i["alpha"], i["seed"], min_size=i["min_size"])}


def quality(i: Inputs) -> Fields:
    labels, clean = np.array(i["labels"]), i["K"] - i["m"]
    parts = partition.quality(i["labels"], i["K"], i["m"], i["alpha"], i["seed"])

    def counts(some: Sequence[list[int]]) -> list[int]:
        return np.bincount(labels[np.concatenate(some)], minlength=labels.max() + 1).tolist()

    pools = zip(counts(parts[:clean]), counts(parts[clean:]), strict=True)
    return {"parts": parts, "class_pool": [list(pool) for pool in pools]}


def gaussian(i: Inputs) -> Fields:
    image = torch.tensor(i["image"], dtype=torch.uint8).permute(2, 0, 1)[None]
    noisy = corruption.gaussian_noise(image, i["severity"], i["seed"])
    return {"sigma": list(corruption.SIGMA), "out": noisy[0].permute(1, 2, 0)}


def motion_kernel(i: Inputs) -> Fields:
    radius, sigma = corruption.BLUR[i["severity"] - 1]
    return {"radius": radius, "sigma": sigma, "weights": corruption.motion_kernel(i["severity"]).tolist()}


def domain_samples(i: Inputs) -> Fields:
    names = list(i["domain_sizes"])
    labels = [np.zeros(n) for n in i["domain_sizes"].values()]
    return {
        "parts": partition.domain_samples(
            labels, [names.index(name) for name in i["client_domains"]], i["percent"], i["seed"]
        )
    }


def office_sizes(i: Inputs) -> Fields:
    split = {name: partition.every_tenth(n) for name, n in i["counts"].items()}
    taken = {name: partition.domain_samples([np.zeros(len(train))], [0], 0.1, 0) for name, (train, _) in split.items()}
    return {
        "n_train": {name: len(train) for name, (train, _) in split.items()},
        "n_test": {name: len(test) for name, (_, test) in split.items()},
        "per_client": {name: len(part) for name, (part,) in taken.items()},
    }


def office_coverage(i: Inputs) -> Fields:
    parts = partition.domain_samples([i["labels"]], [0] * i["K"], i["percent"], i["seed"], cover=True)
    (size,) = {len(part) for part in parts}
    joined = [index for part in parts for index in part]
    return {"parts": parts, "size": size, "overlap": len(joined) - len(set(joined))}


def sampling(i: Inputs) -> Fields:
    m = cohort_size(i["num_users"], i["frac"])
    return {"m": m, "L": Principal(keep=i["k_proportion"])._kept(m)}


ADAPTERS: dict[str, Callable[[Inputs], Fields]] = {
    "partition.dir.plain": dirichlet,
    "partition.dir.capped": dirichlet,
    "partition.pow.sizes.case1": power_sizes,
    "partition.pow.sizes.case2": power_sizes,
    "partition.pow.sizes.case3": power_sizes,
    "partition.pow.seeded": power,
    "partition.cla.case1": class_ramp_counts,
    "partition.cla.case2": class_ramp_counts,
    "partition.cla.seeded": class_ramp,
    "partition.retina.alpha100": retina,
    "partition.retina.alpha1.0": retina,
    "partition.retina.alpha0.5": retina,
    "partition.fedheal.digits": domain_samples,
    "partition.fedheal.office.sizes": office_sizes,
    "partition.fedheal.office.coverage": office_coverage,
    "partition.fedld.sampling": sampling,
    "partition.fedism.quality": quality,
    "partition.fedism.gaussian": gaussian,
    "partition.fedism.motion_kernel.case1": motion_kernel,
    "partition.fedism.motion_kernel.case2": motion_kernel,
}
