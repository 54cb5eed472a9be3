#!/usr/bin/env bash
# wandb 0.31.0. Offline, init with the id of an earlier run and resume='allow' starts at step 0 again, in a second
# folder of the same id, although the first folder holds steps 0 and 1. A program that trusts run.step to continue
# writes every step twice. Seen: run.step 0 both times.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check wandb==0.31.0
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
import glob
import os

os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_DIR=os.getcwd())
import wandb

steps = []
for _ in range(2):
    run = wandb.init(project="p", id="same", resume="allow", reinit="create_new")
    steps.append(run.step)
    for step in range(2):
        run.log({"round": step}, step=run.step)
    run.finish()
    os.system("sleep 1")  # the folder is named by the second
print(steps, len(glob.glob("wandb/offline-run-*-same")))
assert steps == [0, 0]
assert len(glob.glob("wandb/offline-run-*-same")) == 2
PY
echo "As found: wandb 0.31.0, a continued offline run starts at step 0."
