"""Topics and their policies, as a worker's handlers declare them, in the forms a claim needs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from pulsed.model.fields import POLICY, fields_of
from pulsed.model.job import TopicPolicy
from pulsed.store.sql.insertion import as_json, stored


class Topics:
    """The topics of a claim, and the policies that fill what their jobs left unset."""

    def __init__(self, topics: Sequence[TopicPolicy]) -> None:
        self.rules = {each.topic: each.limit for each in topics if each.limit is not None}
        """How the keys of topics with a limit are computed. Their jobs are claimed by key; one that
        lacks its key gets it first."""
        self.unlimited = self
        """The topics without a limit."""
        if self.rules:
            self.unlimited = Topics([each for each in topics if each.limit is None])
        policies = {topic.topic: _policy(topic) for topic in topics}
        self.names = as_json(list(policies))
        self.as_json = as_json([{"t_topic": name} | fills for name, fills in policies.items()])
        different = {tuple(fills.values()): fills for fills in policies.values()}
        numbers = {values: number for number, values in enumerate(different)}
        self.policies = list(different.values())
        """The distinct policies. Most topics have the same one."""
        self.policy_of = {name: numbers[tuple(fills.values())] for name, fills in policies.items()}
        """The index of each topic's policy in ``policies``."""


def _policy(topic: TopicPolicy) -> dict[str, Any]:
    return {
        f"t_{column}": value
        for field in fields_of(POLICY)
        for column, (value,) in stored(field, [getattr(topic, field.attribute(POLICY))])
    }


topics_of = functools.lru_cache(maxsize=64)(Topics)
"""Return the Topics of a tuple, cached."""
