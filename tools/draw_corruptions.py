"""Draw five digits with every corruption at every severity: the picture of the documentation.

Run ``python tools/draw_corruptions.py docs/assets/corruptions.png``.
"""

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

from equipoise.scenarios import digits
from equipoise.scenarios.quality import CORRUPT

SHOWN = (("optdigits", 0), ("photo", 5), ("fonts", 3), ("street", 0), ("street", 2))  # domain and position in its test


def main(path: str) -> None:
    data = digits.recall(0, digits.TRAIN, digits.TEST)
    clean = torch.stack([data[f"{domain}/test/x"][k] for domain, k in SHOWN])
    figure = Figure(figsize=(8.8, 4.3), layout="constrained")
    blocks = figure.subplots(1, len(CORRUPT), squeeze=False)[0]
    for axes, (name, corrupt) in zip(blocks, CORRUPT.items(), strict=True):
        columns = [torch.cat(list(corrupt(clean, severity, 0)), dim=1) for severity in range(6)]  # [3, 160, 32] each
        axes.imshow(torch.cat(columns, dim=2).permute(1, 2, 0).numpy(), interpolation="nearest")
        axes.set_title(name, fontsize=11)
        axes.set_xticks([16 + 32 * k for k in range(6)], ["clean", *map(str, range(1, 6))], fontsize=9)
        axes.set_xlabel("severity", fontsize=9)
        axes.set_yticks([])
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    print(f"{path}: {Path(path).stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
