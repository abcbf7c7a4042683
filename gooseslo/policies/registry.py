"""The policies by architecture (Hugging Face `model_type`)."""

from gooseslo.errors import PolicyError
from gooseslo.policies.gpt2 import GPT2
from gooseslo.policies.llama import LLAMA
from gooseslo.policies.policy import Policy

POLICIES: dict[str, Policy] = {policy.architecture: policy for policy in (GPT2, LLAMA)}


CAUSAL_LM = "causal-lm"
CLASSIFICATION = "sequence-classification"


def find_policy(architecture: str, head: str = CAUSAL_LM) -> Policy:
    """The policy of an architecture under a head (`model.head`); PolicyError names the architectures there are."""
    if architecture not in POLICIES:
        known = ", ".join(sorted(POLICIES))
        raise PolicyError(f"no policy splits the architecture {architecture} (there are: {known})")
    policy = POLICIES[architecture]
    return policy.classifying() if head == CLASSIFICATION else policy
