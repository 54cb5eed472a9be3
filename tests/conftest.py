"""One thread for every test, so that times and the order of sums are the same everywhere."""

import os

import torch
from hypothesis import settings

torch.set_num_threads(1)
os.fsync = lambda descriptor: (
    None
)  # waiting for the disk after every small file takes minutes, and no test pulls the plug
settings.register_profile("equipoise", deadline=None, max_examples=40)
settings.load_profile("equipoise")
