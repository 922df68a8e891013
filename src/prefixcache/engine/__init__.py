"""A model of transformers on paged KV: prefixes that were computed once are not computed again.

Needs the extra `prefixcache[engine]`; nothing else of the library imports this package.
"""

try:
    import torch  # noqa: F401 - only to see whether the extra is installed
    import transformers  # noqa: F401
except ModuleNotFoundError as error:
    from prefixcache.errors import OptionError

    raise OptionError(f"{error.name} is not installed: pip install 'prefixcache[engine]'") from None

from prefixcache.engine.cached_model import CachedModel
from prefixcache.engine.engine import Engine
from prefixcache.engine.models import MODELS, default_model, load, random_model, use_threads
from prefixcache.engine.sampling import Logprob, SamplingParams
from prefixcache.engine.sequence import Completion, Delta, Job

__all__ = [
    "MODELS",
    "CachedModel",
    "Completion",
    "Delta",
    "Engine",
    "Job",
    "Logprob",
    "SamplingParams",
    "default_model",
    "load",
    "random_model",
    "use_threads",
]
