#!/usr/bin/env bash
# pydicom 3.0.2. apply_modality_lut subtracts the first mapped value in the type of the pixels. A table from -1024 on of
# signed 16-bit pixels: pixel 32000 overflows and gets the first entry, where the standard asks for the last. Metal, the
# brightest part of a CT, becomes the darkest. Signed 8-bit pixels above 0 do the same. Seen: 40 at 0, 10 at 32000.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check pydicom==3.0.2 numpy==2.4.6
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
import numpy as np
from pydicom.dataset import Dataset
from pydicom.pixels import apply_modality_lut


def mapped(first, pixels):
    table, image = Dataset(), Dataset()
    table.LUTDescriptor, table.LUTData = [4, first, 16], [10, 20, 30, 40]
    image.PixelRepresentation, image.ModalityLUTSequence = 1, [table]
    return apply_modality_lut(pixels, image).tolist()


ct = mapped(-1024, np.array([-2000, -1024, -1023, 0, 32000], np.int16))
small = mapped(-128, np.array([-128, -127, -125, 127], np.int8))
print(ct, small)
assert ct == [10, 10, 20, 40, 10]
assert small == [10, 20, 40, 10]
PY
echo "As found: pydicom 3.0.2, a pixel far above a lookup table gets its first entry."
