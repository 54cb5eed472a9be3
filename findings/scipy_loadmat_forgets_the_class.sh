#!/usr/bin/env bash
# scipy 1.17.1. MATLAB stores a double array of small whole numbers in bytes, and a logical array always. loadmat
# returns uint8 for both, although the file states the class and whosmat prints it: 200 + 100 is 44, and ~mask is 254
# and 255 instead of the other half. Seen: uint8 where whosmat states double and logical.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check scipy==1.17.1 numpy==2.4.6
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
import numpy as np
from scipy.io import loadmat, savemat, whosmat

savemat("a.mat", {"dose": np.array([[200, 100]], np.uint8), "mask": np.array([[True, False]])})
content = bytearray(open("a.mat", "rb").read())
flags = content.index(b"\x06\0\0\0\x08\0\0\0") + 8  # of the first array: its class, then its storage
assert content[flags] == 9  # uint8
content[flags] = 6  # double, still stored in bytes, as MATLAB does
open("a.mat", "wb").write(content)
classes = {name: kind for name, _, kind in whosmat("a.mat")}
arrays = loadmat("a.mat")
print(classes, arrays["dose"].dtype, arrays["mask"].dtype)
assert classes == {"dose": "double", "mask": "logical"}
assert arrays["dose"].dtype == arrays["mask"].dtype == np.uint8
assert int(arrays["dose"][0, 0] + arrays["dose"][0, 1]) == 44
assert (~arrays["mask"]).tolist() == [[254, 255]]
PY
echo "As found: scipy 1.17.1, loadmat returns bytes for double and logical arrays."
