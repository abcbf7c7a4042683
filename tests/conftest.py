"""One torch thread in the test process: children that tests fork hang if their parent ever computed with several."""

import torch
from hypothesis import settings

# A machine that is busy with something else is no failure: a test as a whole has its time limit.
settings.register_profile("gooseslo", deadline=None)
settings.load_profile("gooseslo")

torch.set_num_threads(1)
