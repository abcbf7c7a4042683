"""The policies by architecture (Hugging Face `model_type`)."""

from gooseslo.errors import PolicyError
from gooseslo.policies.gpt2 import GPT2
from gooseslo.policies.llama import LLAMA
from gooseslo.policies.policy import Policy

POLICIES: dict[str, Policy] = {policy.architecture: policy for policy in (GPT2, LLAMA)}


def find_policy(architecture: str) -> Policy:
    """The policy of an architecture; PolicyError names the ones there are."""
    if architecture not in POLICIES:
        known = ", ".join(sorted(POLICIES))
        raise PolicyError(f"no policy splits the architecture {architecture} (there are: {known})")
    return POLICIES[architecture]
