"""Write the slices of RSNA that FedISM's scenario uses as PNG files, so that the DICOM files, 180 GB, can be deleted.

``python tools/convert_rsna.py data data`` writes 25,000 slices and their lists to ``data/ICH_20``, where the scenario finds them.
The same command continues a conversion that was stopped. It needs the extra ``medical``.
"""

import argparse
from functools import partial
from io import BytesIO
from pathlib import Path

from PIL import Image

from equipoise.data.decoding import Load, ahead, bar, image
from equipoise.data.locations import located
from equipoise.data.sets import rsna
from equipoise.data.sets.image_lists import present
from equipoise.system.files import write_atomically


def convert(
    root: Path,
    out: Path,
    window: str = "brain",
    *,
    lists: Path | None = None,
    n: int = rsna.DRAWN,
    seed: int = 0,
    group_by: str | None = None,
    side: int = rsna.SIDE,
) -> Path:
    """Write PNG files and their lists below ``out``; the options are those of :func:`equipoise.data.sets.rsna.read`.

    Files that are there stay. Returns the folder that was written.
    """
    table, target = located(rsna.NAME, root, rsna.TABLE), out / rsna.folder(window)
    chosen, _ = rsna.selected(table, lists, n, seed, group_by)
    sources = {name: table.parent / "stage_2_train" / f"{name}.dcm" for split in chosen for name in chosen[split]}
    write = partial(_write, load=rsna.loader(window), side=side)
    present(list(sources.values()), rsna.NAME)
    jobs = [(sources[name], target / split / "clean" / f"{name}.png") for split in chosen for name in chosen[split]]
    for _ in bar(f"converting {rsna.NAME}", len(jobs), ahead(write, jobs)):
        pass
    for split, classes in chosen.items():
        lines = ["id,class", *(f"{name},{k}" for name, k in classes.items())]
        write_atomically(target / f"{split}.csv", "\n".join(lines) + "\n")
    return target


def _write(job: tuple[Path, Path], load: Load, side: int) -> None:
    source, target = job
    if target.exists():
        return
    pixels = image(source, (side, side), load)
    grey = bool((pixels == pixels[:1]).all())
    buffer = BytesIO()
    Image.fromarray(pixels[0] if grey else pixels.transpose(1, 2, 0)).save(buffer, "PNG")
    write_atomically(target, buffer.getvalue())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Write the slices of RSNA that the scenario fedism-rsna uses as PNG files."
    )
    parser.add_argument("root", type=Path, help="folder with rsna-intracranial-hemorrhage-detection")
    parser.add_argument("out", type=Path, help="folder for ICH_20; the same folder, to have the scenario find it")
    parser.add_argument("--window", choices=sorted(rsna.WINDOWS), default="brain")
    parser.add_argument(
        "--lists", type=Path, help="folder with train.csv and test.csv of lines id,class [default: a draw]"
    )
    parser.add_argument("--n", type=int, default=rsna.DRAWN, help="slices that are drawn")
    parser.add_argument("--seed", type=int, default=0, help="decides the draw")
    parser.add_argument("--group-by", choices=["PatientID"], help="keep the slices of a patient in one part")
    parser.add_argument("--side", type=int, default=rsna.SIDE, help="side of the images, pixels")
    print(f"wrote {convert(**vars(parser.parse_args()))}")
