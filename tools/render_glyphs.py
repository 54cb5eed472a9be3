"""Render the digit glyphs that the embedded scenario ships, once, so that library versions do not change the data.

Run ``python tools/render_glyphs.py src/equipoise/scenarios/glyphs.npz`` only to change the glyphs: another FreeType may
move grey levels, and any change of the file calls for a new ``VERSION`` in ``scenarios/digits.py``.

The archive holds ``masks`` uint8 [fonts, 10, 64, 64] (ink 255 on 0), ``fonts`` and ``families`` (names) and ``train``
(bool: the font may be used in training data). Training and test fonts have no family in common.

Licences of the fonts drawn, all of which allow images of the glyphs to be distributed:

- DejaVu (matplotlib): Bitstream Vera licence; the changes of DejaVu are in the public domain.
- STIX (matplotlib): STIX Font License, 2010.
- Computer Modern cm*10 (matplotlib): BaKoMa Fonts Licence.
- Aileron (the default font of Pillow): CC0 1.0.
"""

import sys
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFont

CELL = 64  # pixels; twice the size of an image, so that warping it down stays sharp
HEIGHT = 44  # pixels; every digit is scaled to this height of ink
POINTS = 96  # rendering size before scaling down
INK = 40  # grey level above which a pixel counts as ink when cropping

AILERON = "Aileron-Regular"
TRAIN = {
    "DejaVu": (
        *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
        *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
        *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    ),
    "STIX": ("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
}
TEST = {
    "Computer Modern": ("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10", "cmmi10"),
    "Aileron": (AILERON,),
}


def typeface(name: str) -> ImageFont.FreeTypeFont:
    if name != AILERON:
        return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"), POINTS)
    font = ImageFont.load_default(size=POINTS)
    if not isinstance(font, ImageFont.FreeTypeFont) or font.getname() != ("Aileron", "Regular"):
        raise SystemExit(
            "Expected Pillow's default font to be Aileron Regular: use Pillow 10.1 or newer with FreeType."
        )
    return font


def glyph(font: ImageFont.FreeTypeFont, digit: int) -> NDArray[np.uint8]:
    """One digit, cropped to its ink, scaled to HEIGHT and centred in a cell [CELL, CELL]."""
    drawn = font.getmask(str(digit), mode="L")
    image = np.asarray(drawn, np.uint8).reshape(drawn.size[1], drawn.size[0])
    rows, columns = np.where(image > INK)
    image = image[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    width = min(max(1, round(image.shape[1] * HEIGHT / image.shape[0])), CELL - 4)
    cell = np.zeros((CELL, CELL), np.uint8)
    top, left = (CELL - HEIGHT) // 2, (CELL - width) // 2
    scaled = Image.fromarray(image).resize((width, HEIGHT), Image.Resampling.LANCZOS)
    cell[top : top + HEIGHT, left : left + width] = np.asarray(scaled)
    return cell


def main(path: str) -> None:
    rows = [(name, family, use is TRAIN) for use in (TRAIN, TEST) for family in use for name in use[family]]
    masks = np.stack([[glyph(typeface(name), digit) for digit in range(10)] for name, _, _ in rows])
    np.savez_compressed(
        path,
        masks=masks,
        fonts=np.array([name for name, _, _ in rows]),
        families=np.array([family for _, family, _ in rows]),
        train=np.array([train for _, _, train in rows]),
    )
    print(f"{path}: {len(rows)} fonts, {Path(path).stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
