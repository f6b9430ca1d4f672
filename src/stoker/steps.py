"""Steps of chains, for those who write one of another kind; see docs/chains.md.

from stoker.steps import LEFT_OUT, Step
"""

from stoker.reading.steps import LEFT_OUT, TO_REPLACE, Generators, SamplePlace, Step

__all__ = ["LEFT_OUT", "TO_REPLACE", "Generators", "SamplePlace", "Step"]
