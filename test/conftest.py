"""Tests run eager and on one thread, as a session does by default."""

import torch

torch.set_num_threads(1)
