"""Scenario files: a cache, a list of steps, the right answers, played under the KV oracle."""
