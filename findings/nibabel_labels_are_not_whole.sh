#!/usr/bin/env bash
# nibabel 5.4.2. A segmentation whose labels 0, 1, 2, 3 are floats is saved with the type int16. To use the whole range,
# nibabel multiplies them and stores a slope; read again, the labels are 0.99999..., and mask == 1 is empty. The header
# states int16 and no warning is given. Seen: 0 voxels equal 1.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check nibabel==5.4.2 numpy==2.4.6
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
import nibabel as nib
import numpy as np

labels = np.array([0.0, 1.0, 2.0, 3.0]).reshape(2, 2, 1)
image = nib.Nifti1Image(labels, np.eye(4))
image.set_data_dtype(np.int16)
nib.save(image, "labels.nii")
back = nib.load("labels.nii")
voxels = back.get_fdata()
print(back.get_data_dtype(), voxels.ravel().tolist())
assert back.get_data_dtype() == np.int16
assert (voxels == 1).sum() == 0
assert np.allclose(voxels, labels)
PY
echo "As found: nibabel 5.4.2, labels saved as int16 are not whole numbers when they are read."
