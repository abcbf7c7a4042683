"""One torch thread in the test process: children that tests fork hang if their parent ever computed with several."""

import torch

torch.set_num_threads(1)
