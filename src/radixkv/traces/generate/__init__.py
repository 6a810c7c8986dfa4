"""Workloads by name: traffic made from a seed. A new one is a file here and a row in the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from radixkv.errors import UnknownNameError
from radixkv.traces.generate.base import Workload, WorkloadError
from radixkv.traces.generate.chat import Chat
from radixkv.traces.generate.coding_agents import CodingAgents
from radixkv.traces.generate.cycle import Cycle
from radixkv.traces.generate.few_shot import FewShot
from radixkv.traces.generate.rag import Rag
from radixkv.traces.generate.shared_system import SharedSystem
from radixkv.traces.generate.tree_of_thought import TreeOfThought

WORKLOADS: Final[Mapping[str, type[Workload]]] = {
    "chat": Chat,
    "coding-agents": CodingAgents,
    "cycle": Cycle,
    "few-shot": FewShot,
    "rag": Rag,
    "shared-system": SharedSystem,
    "tree-of-thought": TreeOfThought,
}
"""Every workload by its name; each is a dataclass of its parameters."""


def make_workload(name: str, **parameters: float) -> Workload:
    """The workload of that name; parameters that are not given are its defaults.

    Raises:
        UnknownNameError: no such workload, or it has no such parameter; lists those there are.
        SizeError: a count or a length that cannot be.
        WorkloadError: another number that cannot be.

    >>> cycle = make_workload("cycle", prefixes=3, prefix_tokens=4)
    >>> [request.prompt.tolist()[:2] for request in cycle.requests(4, seed=1)]
    [[36190, 36334], [15469, 26783], [30408, 40215], [36190, 36334]]
    """
    kind = WORKLOADS.get(name)
    if kind is None:
        raise UnknownNameError(kind="workload", name=name, known=tuple(sorted(WORKLOADS)))
    known = tuple(parameter.name for parameter in fields(kind))
    for parameter in parameters:
        if parameter not in known:
            raise UnknownNameError(kind=f"parameter of {name}", name=parameter, known=known)
    return kind(**parameters)


__all__ = [
    "WORKLOADS",
    "Chat",
    "CodingAgents",
    "Cycle",
    "FewShot",
    "Rag",
    "SharedSystem",
    "TreeOfThought",
    "Workload",
    "WorkloadError",
    "make_workload",
]
