import os

import hypothesis
import torch

# Small tensors: threads cost more than they give, and xdist already fills the cores.
torch.set_num_threads(1)

hypothesis.settings.register_profile(
    "default", deadline=None, print_blob=True, derandomize="CI" in os.environ
)
hypothesis.settings.load_profile("default")
